"""Membership inference: how well a stranger who has scores of texts could tell those that were trained on from others.

Scores of one document are alike, so intervals are of a bootstrap over documents: each resample weighs every document by
how often it was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from niels_gpt.rng import numpy_generator

_RESAMPLES = 500
_FALSE_ALARMS = 0.01


@dataclass(frozen=True)
class Attack:
    """`auc`: how often a text that was trained on scores higher than one that was not, 0.5 for a guess. `tpr`: share of
    those trained on that are found where one in a hundred others is taken for one of them. Each with 95% intervals."""

    auc: float
    auc_95: tuple[float, float]
    tpr: float
    tpr_95: tuple[float, float]


@dataclass(frozen=True)
class Side:
    """Scores, and which document each is of."""

    scores: np.ndarray
    documents: np.ndarray


def attack(members: Side, others: Side, *, seed: int) -> Attack | None:
    """None where a side has fewer than two documents: nothing can be said of its spread."""
    counts = [len(np.unique(side.documents)) for side in (members, others)]
    if min(counts) < 2:
        return None
    ranked = _Ranked(members, others)
    rng = numpy_generator(seed)
    drawn = [
        ranked.rates(*(rng.multinomial(n, np.full(n, 1 / n)).astype(np.float64) for n in counts))
        for _ in range(_RESAMPLES)
    ]
    auc, tpr = ranked.rates(*(np.ones(n) for n in counts))
    intervals = np.quantile(np.array(drawn), (0.025, 0.975), axis=0).T
    (auc_low, auc_high), (tpr_low, tpr_high) = intervals.tolist()
    return Attack(auc, (auc_low, auc_high), tpr, (tpr_low, tpr_high))


class _Ranked:
    """All scores in order, once, so that a resample is a sum."""

    def __init__(self, members: Side, others: Side) -> None:
        _, self._rank = np.unique(np.concatenate((members.scores, others.scores)), return_inverse=True)
        self._split, self._levels = len(members.scores), int(self._rank.max()) + 1
        self._of = [np.unique(side.documents, return_inverse=True)[1] for side in (members, others)]

    def rates(self, *weights: np.ndarray) -> tuple[float, float]:
        """(AUC, share found at 1% false alarms) with documents weighed so; equal scores count half."""
        ranks = (self._rank[: self._split], self._rank[self._split :])
        member, other = (
            np.bincount(rank, weights=weight[of], minlength=self._levels)
            for rank, of, weight in zip(ranks, self._of, weights, strict=True)
        )
        member, other = member / member.sum(), other / other.sum()
        auc = min(1.0, float((member * (other.cumsum() - other / 2)).sum()))  # but for rounding it is no more
        above = 1 - other.cumsum()  # false alarms, where all above a level are taken for members
        threshold = int(np.argmax(above <= _FALSE_ALARMS + 1e-12))
        return auc, min(1.0, float(member[threshold + 1 :].sum()))
