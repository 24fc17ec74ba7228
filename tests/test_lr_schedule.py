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
    half = lr_at_step(200 + (999 - 200) // 2, 1000)
    assert half == pytest.approx((3e-4 + 3e-5) / 2, rel=1e-2)


@given(total=st.integers(1, 300), warmup=st.integers(0, 400), step=st.integers(0, 500))
def test_no_combination_divides_by_zero_or_leaves_the_range(total: int, warmup: int, step: int) -> None:
    assert 0 <= lr_at_step(step, total, base_lr=1.0, warmup_steps=warmup, min_lr=0.1) <= 1.0


@given(total=st.integers(3, 300), warmup=st.integers(0, 100))
def test_up_to_the_top_and_down_from_it(total: int, warmup: int) -> None:
    rates = [lr_at_step(s, total, base_lr=1.0, warmup_steps=warmup, min_lr=0.1) for s in range(total)]
    top = min(warmup, total - 1)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
