from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.lr_schedule import lr_at_step


def test_landmarks() -> None:
    assert lr_at_step(0, 1000) == 0
    assert lr_at_step(100, 1000) == pytest.approx(1.5e-4)
    assert lr_at_step(200, 1000) == pytest.approx(3e-4)
    assert lr_at_step(999, 1000) == pytest.approx(3e-5)


@pytest.mark.parametrize("quarter", [0, 1, 2, 3, 4])
def test_the_way_down_is_a_cosine(quarter: int) -> None:
    """At a quarter of it a line would have lost 25%, a cosine 15%."""
    share = {0: 1.0, 1: 0.853553, 2: 0.5, 3: 0.146447, 4: 0.0}[quarter]
    rate = lr_at_step(100 + 200 * quarter, 901, base_lr=1.0, warmup_steps=100, min_lr=0.2)
    assert rate == pytest.approx(0.2 + 0.8 * share, abs=1e-6)


@pytest.mark.parametrize("step", [0, 1, 25, 50, 99, 100])
def test_the_way_up_is_a_line(step: int) -> None:
    assert lr_at_step(step, 901, base_lr=1.0, warmup_steps=100, min_lr=0.2) == pytest.approx(step / 100)


def test_after_the_end_the_rate_stays_at_its_least() -> None:
    assert lr_at_step(5000, 1000) == pytest.approx(3e-5)
    assert lr_at_step(5, 3, base_lr=1.0, warmup_steps=2, min_lr=0.1) == 0.1


@given(total=st.integers(1, 300), warmup=st.integers(0, 400), step=st.integers(0, 500))
def test_no_combination_divides_by_zero_or_leaves_the_range(total: int, warmup: int, step: int) -> None:
    assert 0 <= lr_at_step(step, total, base_lr=1.0, warmup_steps=warmup, min_lr=0.1) <= 1.0


@given(total=st.integers(3, 300), warmup=st.integers(0, 100))
def test_up_to_the_top_and_down_from_it(total: int, warmup: int) -> None:
    rates = [lr_at_step(s, total, base_lr=1.0, warmup_steps=warmup, min_lr=0.1) for s in range(total)]
    top = min(warmup, total - 1)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
