"""Tests of the learning-rate schedule: warm-up, decay, and options."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.config import TrainConfig
from niels_gpt.lr_schedule import lr_at_step, scheduled_lr, scheduled_momentum

SCHEDULES = st.sampled_from(["cosine", "linear"])
FLAT = st.floats(0, 1, exclude_max=True)


def test_landmarks() -> None:
    assert lr_at_step(0, 1000) == 0
    assert lr_at_step(100, 1000) == pytest.approx(1.5e-4)
    assert lr_at_step(200, 1000) == pytest.approx(3e-4)
    assert lr_at_step(999, 1000) == pytest.approx(3e-5)


@pytest.mark.parametrize("quarter", [0, 1, 2, 3, 4])
def test_the_decay_is_a_cosine(quarter: int) -> None:
    """After a quarter of the decay, a line would have fallen by 25%, a cosine by 15%."""
    share = {0: 1.0, 1: 0.853553, 2: 0.5, 3: 0.146447, 4: 0.0}[quarter]
    rate = lr_at_step(100 + 200 * quarter, 901, base_lr=1.0, warmup_steps=100, min_lr=0.2)
    assert rate == pytest.approx(0.2 + 0.8 * share, abs=1e-6)


@pytest.mark.parametrize("step", [0, 1, 25, 50, 99, 100])
def test_the_warm_up_is_linear(step: int) -> None:
    assert lr_at_step(step, 901, base_lr=1.0, warmup_steps=100, min_lr=0.2) == pytest.approx(step / 100)


def test_after_the_last_step_the_rate_stays_at_min_lr() -> None:
    assert lr_at_step(5000, 1000) == pytest.approx(3e-5)
    assert lr_at_step(5, 3, base_lr=1.0, warmup_steps=2, min_lr=0.1) == 0.1


@given(total=st.integers(1, 300), warmup=st.integers(0, 400), step=st.integers(0, 500), schedule=SCHEDULES, flat=FLAT)
def test_no_combination_divides_by_zero_or_leaves_the_range(
    total: int, warmup: int, step: int, schedule: Any, flat: float
) -> None:
    rate = lr_at_step(step, total, base_lr=1.0, warmup_steps=warmup, min_lr=0.1, schedule=schedule, flat=flat)
    assert 0 <= rate <= 1.0


@given(total=st.integers(3, 300), warmup=st.integers(0, 100), schedule=SCHEDULES, flat=FLAT)
def test_the_rate_rises_to_its_peak_and_then_falls(total: int, warmup: int, schedule: Any, flat: float) -> None:
    shape: Any = {"base_lr": 1.0, "warmup_steps": warmup, "min_lr": 0.1, "schedule": schedule, "flat": flat}
    rates = [lr_at_step(s, total, **shape) for s in range(total)]
    top = min(warmup, total - 1)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    if top < total - 1:
        assert (rates[top], rates[-1]) == pytest.approx((1.0, 0.1))


@given(total=st.integers(1, 10**6), warmup=st.integers(0, 500), step=st.integers(0, 10**6))
def test_default_options_leave_the_original_rates_unchanged_to_the_bit(total: int, warmup: int, step: int) -> None:
    decay_steps = total - 1 - warmup
    if warmup <= step < total and decay_steps > 0:
        turned = math.cos(math.pi * ((step - warmup) / decay_steps))
        assert lr_at_step(step, total, warmup_steps=warmup) == 3e-5 + 0.5 * (3e-4 - 3e-5) * (1.0 + turned)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("linear", {100: 1.0, 300: 1.0, 500: 1.0, 501: 0.998, 600: 0.8, 700: 0.6, 899: 0.202, 900: 0.2, 5000: 0.2}),
        ("cosine", {100: 1.0, 500: 1.0, 600: 0.882843, 700: 0.6, 800: 0.317157, 900: 0.2}),
    ],
)
def test_the_rate_stays_for_a_while_and_then_falls(schedule: Any, rates: dict[int, float]) -> None:
    """The rate is constant for half of the 800 steps after the warm-up, and falls in the other half."""
    cfg = TrainConfig(total_steps=901, base_lr=1.0, warmup_steps=100, min_lr=0.2, flat=0.5, schedule=schedule)
    assert {step: scheduled_lr(cfg, step) for step in rates} == pytest.approx(rates, abs=1e-6)
    assert scheduled_lr(cfg, 50) == 0.5
    assert scheduled_lr(replace(cfg, flat=0.0), 500) == pytest.approx(0.6)


def test_momentum_rises_linearly_and_then_stays() -> None:
    cfg = TrainConfig(total_steps=1000, momentum_warmup=100)
    expected = {0: 0.85, 1: 0.851, 50: 0.9, 99: 0.949, 100: 0.95, 101: 0.95, 999: 0.95}
    assert {step: scheduled_momentum(cfg, step) for step in expected} == pytest.approx(expected)
    at_once = replace(cfg, momentum_warmup=0)
    assert [scheduled_momentum(at_once, step) for step in (0, 1, 999)] == [0.95] * 3
