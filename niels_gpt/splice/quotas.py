"""Sampling quotas: how many examples each document gets, and which of its spans. Exact, without a random number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from niels_gpt.config import check_value

BalanceMode = Literal["by_temperature", "by_coverage", "by_document"]
_TIE = 1e-9  # numbers closer than this are equal: floating-point noise must not decide


def edge_weights(L: int, K: int, alpha: float) -> np.ndarray:
    """Weight of every start 0..L-K: (K/d)^alpha, d being the distance to the nearer end of the starts, at most K."""
    t = np.arange(L - K + 1)
    distance = np.minimum(np.minimum(t + 1, L - K - t + 1), K)
    return (K / np.maximum(distance, 1)) ** alpha


def quotas(
    lengths: Sequence[int], *, balance_mode: str = "by_temperature", balance_tau: float = 1.0, epoch_length: int
) -> list[int]:
    """Shares of an epoch in proportion to length^tau (by_coverage: tau 1, by_document: tau 0); they sum to it exactly.

    What rounding leaves over goes to the largest remainders, and among equal ones to the first document.
    """
    tau = temperature(balance_mode, balance_tau)
    weights = [float(length) ** tau for length in lengths]
    exact = np.array([epoch_length * weight / sum(weights) for weight in weights])
    whole = np.floor(exact + _TIE).astype(np.int64)
    remainders = np.round((exact - whole) / _TIE).astype(np.int64)
    for i in sorted(range(len(lengths)), key=lambda i: (-remainders[i], i))[: epoch_length - int(whole.sum())]:
        whole[i] += 1
    return [int(quota) for quota in whole]


def temperature(balance_mode: str, balance_tau: float) -> float:
    check_value("balance_mode", balance_mode, BalanceMode)
    if not np.isfinite(balance_tau):
        raise ValueError(f"balance_tau must be a finite number, got {balance_tau}")
    return {"by_temperature": balance_tau, "by_coverage": 1.0, "by_document": 0.0}[balance_mode]


def quantile_indices(n: int, Q: int, weights: Sequence[float] | np.ndarray | None = None) -> np.ndarray:
    """Q of n items, ascending: for k = 0..Q-1 the first whose cumulative share exceeds (k + 1/2)/Q."""
    k = np.arange(Q, dtype=np.int64)
    if weights is None:
        return (2 * k + 1) * n // (2 * Q)
    cumulative = np.cumsum(np.asarray(weights, dtype=np.float64))
    found = np.searchsorted(cumulative / cumulative[-1], (k + 0.5) / Q + _TIE, side="right")
    return np.minimum(found, n - 1)
