"""Tests of the scaling law: properties of its terms, and agreement with measured runs."""

import pytest

from niels_gpt.model.size import (
    Ability,
    Reading,
    bytes_per_token,
    expected_ability,
    expected_bits_per_byte,
    most_epochs,
)


def bits(parameters: float, megabytes: float, steps: int) -> float:
    return expected_bits_per_byte(int(parameters * 1e6), [Reading(megabytes * 1e6, megabytes * 1e6)], steps=steps)


@pytest.mark.parametrize(
    ("parameters", "megabytes", "steps", "measured"),
    [(4.21, 34.8, 1340, 1.574), (0.92, 6.3, 244, 2.058), (12.2, 25.3, 976, 1.540), (33.4, 39.6, 300, 1.410)],
)
def test_the_law_predicts_measured_runs(parameters: float, megabytes: float, steps: int, measured: float) -> None:
    """The law is within 0.06 of these runs, one of them at preset v2's own size; docs/recipe.md describes the fit."""
    assert bits(parameters, megabytes, steps) == pytest.approx(measured, abs=0.06)


def test_the_terms_are_the_fitted_ones() -> None:
    assert bits(1, 1, 100) == pytest.approx(2.626)
    assert bits(2, 1, 100) == pytest.approx(2.626 - 0.358 * 0.2680, abs=1e-4)
    assert bits(1, 2, 100) == pytest.approx(2.626 - 1.344 * 0.1527, abs=1e-4)
    assert bits(1, 1, 200) == pytest.approx(2.626 - 0.124 * 0.6390, abs=1e-4)


def test_epochs_help_small_models_longer_and_all_in_epochs() -> None:
    sizes = (1_999_999, 2_000_000, 124_000_000)
    assert [most_epochs(size) for size in sizes] == [16, 8, 8]
    assert [most_epochs(size, in_epochs=True) for size in sizes] == [32, 32, 32]


def test_more_of_anything_is_better_and_never_below_the_text_itself() -> None:
    few = bits(4, 10, 500)
    assert 0.8 < bits(8, 10, 500) < few
    assert 0.8 < bits(4, 20, 500) < few
    assert 0.8 < bits(4, 10, 1000) < few


def test_text_read_again_is_worth_less_each_time() -> None:
    once, twice, often, always = (Reading(1e6, times * 1e6).as_new for times in (1, 2, 8, 1000))
    assert once == 1e6
    assert Reading(1e6, 4e5).as_new == 4e5  # text that is not read teaches nothing
    assert once < twice < often < always < 3e6
    assert twice - once > (often - twice) / 6


def test_windows_in_epochs_gain_what_they_gained() -> None:
    """Gains are the bits per byte that 6, 12 and 24 epochs end below 6 with windows at random; text is in megabytes."""
    for millions, megabytes, steps, gains in (
        (13.8, 4.85, 1440, (0.051, 0.084, 0.100)),
        (4.2, 1.9, 958, (0.052, 0.140, 0.160)),
        (4.2, 1.13, 714, (0.052, 0.093, 0.122)),
    ):
        at_random, *in_epochs = (
            expected_bits_per_byte(
                int(millions * 1e6), [Reading(megabytes * 1e6, n * megabytes * 1e6, how)], steps=steps * n // 6
            )
            for n, how in ((6, False), (6, True), (12, True), (24, True))
        )
        assert [at_random - bits for bits in in_epochs] == pytest.approx(gains, abs=0.05)


def test_what_a_model_will_write_follows_from_what_was_measured() -> None:
    """The runs are from docs/report-card.md: parameters in millions, megabytes of text, epochs, steps."""
    for millions, megabytes, epochs, steps, ability in (
        (0.53, 0.083, 11.2, 346, Ability.NO_WORDS),
        (0.53, 0.486, 2.4, 352, Ability.NO_WORDS),
        (1.45, 4.86, 0.15, 199, Ability.NO_WORDS),
        (0.53, 0.33, 5.5, 800, Ability.WORDS),  # the sample
        (1.45, 4.86, 0.5, 400, Ability.WORDS),
        (33.4, 1000.0, 1.0, 8000, Ability.SENTENCES),  # preset v2, by the law alone
    ):
        text = Reading(megabytes * 1e6, epochs * megabytes * 1e6)
        assert expected_ability(int(millions * 1e6), [text], steps=steps) == ability


def test_texts_add_up() -> None:
    both = expected_bits_per_byte(4_000_000, [Reading(5e6, 5e6), Reading(3e6, 3e6)], steps=500)
    assert both == bits(4, 8, 500)


def test_bytes_of_a_token_grow_with_the_vocabulary() -> None:
    assert bytes_per_token(260) == 1.0
    for vocabulary, measured in ((1024, 2.24), (4096, 3.17), (16128, 4.03)):
        assert bytes_per_token(vocabulary) == pytest.approx(measured, abs=0.05)
