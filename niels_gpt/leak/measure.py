"""Leak measurement: extractable sentences and passages of a source, and membership inference."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from niels_gpt.leak.extraction import Extraction, Questions, extract
from niels_gpt.leak.passages import (
    TRIES,
    Documents,
    Passages,
    Scored,
    cut_passages,
    longest_run,
    needed_log_pz,
    repeated,
    score_passages,
)
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import numpy_generator

# Membership inference: how well an attacker with the model's scores can tell training texts from other texts.
#
# Scores within a document are correlated, so confidence intervals come from a bootstrap over documents: each resample
# weights every document by how often it was sampled.

_RESAMPLES = 500
_FALSE_ALARMS = 0.01


@dataclass(frozen=True)
class Attack:
    """Membership-inference result with 95% intervals: AUC (0.5 is chance), and true-positive rate at 1% FPR."""

    auc: float
    auc_95: tuple[float, float]
    tpr: float
    tpr_95: tuple[float, float]


@dataclass(frozen=True)
class Side:
    """Scores of passages, and the document of each."""

    scores: np.ndarray
    documents: np.ndarray


def attack(members: Side, others: Side, *, seed: int) -> Attack | None:
    """Return AUC and TPR of telling `members` (trained on) from `others` by score.

    None if a side has fewer than 2 documents, since its variance is then unknown.
    """
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
    """Scores of both sides ranked once, so that each resample takes a weighted sum only."""

    def __init__(self, members: Side, others: Side) -> None:
        _, self._rank = np.unique(np.concatenate((members.scores, others.scores)), return_inverse=True)
        self._split, self._levels = len(members.scores), int(self._rank.max()) + 1
        self._of = [np.unique(side.documents, return_inverse=True)[1] for side in (members, others)]

    def rates(self, *weights: np.ndarray) -> tuple[float, float]:
        """Return (AUC, TPR at 1% FPR) with a weight per document of each side; ties count half in the AUC."""
        ranks = (self._rank[: self._split], self._rank[self._split :])
        member, other = (
            np.bincount(rank, weights=weight[of], minlength=self._levels)
            for rank, of, weight in zip(ranks, self._of, weights, strict=True)
        )
        member, other = member / member.sum(), other / other.sum()
        auc = min(1.0, float((member * (other.cumsum() - other / 2)).sum()))  # rounding may exceed 1
        above = 1 - other.cumsum()  # false-positive rate if all scores above a level count as members
        threshold = int(np.argmax(above <= _FALSE_ALARMS + 1e-12))
        return auc, min(1.0, float(member[threshold + 1 :].sum()))


# Extraction from training text, with held-out text of the same source as a control.
#
# The prompt of a sentence is its first words (extraction.py), of a passage half of its tokens. A passage whose text
# occurs in other documents, too, is skipped: it tells nothing about one document, and the sentences report it. Some
# held-out passages are completed by chance; it is a leak only if training passages are completed more often.


@dataclass(frozen=True)
class Subject:
    """Training and held-out passages of a source whose text is in no other training document.

    `repeated`: by side, the number of passages skipped because their text is in one.
    """

    train: Passages
    held_out: Passages
    repeated: dict[str, int]

    @classmethod
    def of(cls, train: Documents, held_out: Documents, **windows: Any) -> Subject:
        """Cut both sides into passages and drop repeated ones; `windows` are arguments of `cut_passages`."""
        cut = {"train": cut_passages(train, **windows), "held_out": cut_passages(held_out, **windows)}
        known = {name: repeated(passages, train, own=name == "train") for name, passages in cut.items()}
        return cls(
            **{name: passages.take(~known[name]) for name, passages in cut.items()},
            repeated={name: int(mask.sum()) for name, mask in known.items()},
        )


@dataclass(frozen=True)
class Told:
    """Passages, and a model's scores of them."""

    passages: Passages
    scored: Scored

    @property
    def whole(self) -> np.ndarray:
        """Mask of the passages that greedy decoding completes."""
        return self.scored.greedy == self.passages.asked

    @property
    def extractable(self) -> np.ndarray:
        """Mask of the extractable passages: completed by greedy decoding, or in 1,000 samples with probability 1/2."""
        return self.whole | (self.scored.log_pz >= needed_log_pz(TRIES[-1]))

    @property
    def share(self) -> float:
        """Share of the passages that are extractable, 0 to 1."""
        return float(self.extractable.mean()) if len(self.passages) else 0.0

    def side(self) -> Side:
        """Return the scores for membership inference: mean log probability, in nats/token."""
        return Side(self.scored.log_pz / self.passages.asked, self.passages.documents)

    def stats(self) -> dict[str, Any]:
        """Return the numbers without any text."""
        run, _ = longest_run(self.passages, self.scored.greedy)
        stats: dict[str, Any] = {
            "documents": len(np.unique(self.passages.documents)),
            "passages": len(self.passages),
            "extractable": int(self.extractable.sum()),
            "greedy": int(self.whole.sum()),
            "longest_run_tokens": run,
            "median_log_pz": float(np.median(self.scored.log_pz)) if len(self.passages) else None,
        }
        for name, logs in {"pz": self.scored.log_pz, "pz_alone": self.scored.log_pz_alone}.items():
            # Pairs in a list, because tables of experiments get a column for every number with a name.
            stats[f"{name}_found_in_n_samples"] = [(n, int((logs >= needed_log_pz(n)).sum())) for n in TRIES]
        return stats


@dataclass(frozen=True)
class Leak:
    """Leak measurement of one source and one model."""

    train: Told
    held_out: Told
    repeated: dict[str, int]
    attack: Attack | None
    extraction: Extraction

    @property
    def beyond_chance(self) -> int:
        """Number of extractable training passages; 0 if the share of extractable held-out ones is as high."""
        return int(self.train.extractable.sum()) if self.train.share > self.held_out.share else 0

    def stats(self) -> dict[str, Any]:
        """Return the numbers without any text, as stored in the metrics."""
        sides = {"train": self.train, "held_out": self.held_out}
        return {
            "extractable_sentences": len(self.extraction.findings),
            "extractable_passages": self.beyond_chance,
            "sentences": self.extraction.stats(),
            **{name: {**told.stats(), "repeated_passages": self.repeated[name]} for name, told in sides.items()},
            "attack": None if self.attack is None else asdict(self.attack),
        }


def tell(model: GPT, passages: Passages, *, end_of_text: int, B: int) -> Told:
    """Score passages with a model, `B` of them per forward pass."""
    return Told(passages, score_passages(model, passages, end_of_text=end_of_text, B=B))


def measure_leak(model: GPT, subject: Subject, questions: Questions, *, seed: int, **how: Any) -> Leak:
    """Measure the passages and the sentences of one source; `how` are arguments of `tell`."""
    train, held_out = (tell(model, passages, **how) for passages in (subject.train, subject.held_out))
    membership = attack(train.side(), held_out.side(), seed=seed)
    return Leak(train, held_out, subject.repeated, membership, extract(model, questions, seed=seed, **how))
