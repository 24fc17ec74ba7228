"""The leak measurement: extractable passages of each source, and membership inference."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from niels_gpt.leak.extraction import Extraction, Questions, extract
from niels_gpt.leak.passages import Documents, Passages, Scored, cut_passages, longest_run, repeated, score_passages
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import numpy_generator

# Membership inference: how well a stranger who has scores of texts could tell those that were trained on from others.
#
# Scores of one document are alike, so intervals are of a bootstrap over documents: each resample weighs every document
# by how often it was drawn.

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


# What a model gives away of the text it was trained on, compared with held-out text like it.
#
# Sentences are asked for by their first words (extraction.py), passages by half of their tokens. A passage whose text
# also stands in other documents is skipped: it tells nothing about one document, and the sentences report it. Passages
# of held-out documents come out, too, by chance; only what comes out more often of training documents is a leak.

TRIES = (1, 10, 100, 1000)  # samples that a stranger takes; within the last of them a passage counts as extractable


@dataclass(frozen=True)
class Subject:
    """What models are asked for: passages of a source's train documents and of its held-out ones, of text that is in no
    other train document; and how many passages were left out for being in others."""

    train: Passages
    held_out: Passages
    repeated: dict[str, int]

    @classmethod
    def of(cls, train: Documents, held_out: Documents, **windows: Any) -> Subject:
        """`windows` as of cut_passages."""
        cut = {"train": cut_passages(train, **windows), "held_out": cut_passages(held_out, **windows)}
        known = {name: repeated(passages, train, own=name == "train") for name, passages in cut.items()}
        return cls(
            **{name: passages.take(~known[name]) for name, passages in cut.items()},
            repeated={name: int(mask.sum()) for name, mask in known.items()},
        )


@dataclass(frozen=True)
class Told:
    """Passages of documents, and what a model makes of them."""

    passages: Passages
    scored: Scored

    @property
    def whole(self) -> np.ndarray:
        """Which come to their end where the likeliest token is always taken."""
        return self.scored.greedy == self.passages.asked

    @property
    def extractable(self) -> np.ndarray:
        """Which a stranger gets who has the prompt and takes the likeliest tokens, or a thousand samples."""
        return self.whole | (self.scored.log_pz >= needed_log_pz(TRIES[-1]))

    @property
    def share(self) -> float:
        return float(self.extractable.mean()) if len(self.passages) else 0.0

    def side(self) -> Side:
        """For an attack: the mean log probability of a token."""
        return Side(self.scored.log_pz / self.passages.asked, self.passages.documents)

    def stats(self) -> dict[str, Any]:
        """Numbers only."""
        run, _ = longest_run(self.passages, self.scored.greedy)
        stats: dict[str, Any] = {
            "documents": len(np.unique(self.passages.documents)),
            "passages": len(self.passages),
            "extractable": int(self.extractable.sum()),
            "greedy": int(self.whole.sum()),
            "longest_run_tokens": run,
        }
        for name, logs in {"pz": self.scored.log_pz, "pz_alone": self.scored.log_pz_alone}.items():
            stats[f"median_log_{name}"] = float(np.median(logs)) if len(logs) else None
            # Pairs in a list: of numbers in a table, a column each is made where experiments are compared.
            stats[f"{name}_found_in_n_samples"] = [(n, int((logs >= needed_log_pz(n)).sum())) for n in TRIES]
        return stats


@dataclass(frozen=True)
class Leak:
    """One source under one model."""

    train: Told
    held_out: Told
    repeated: dict[str, int]
    attack: Attack | None
    extraction: Extraction

    @property
    def beyond_chance(self) -> int:
        """Passages of train documents that can be extracted, where of held-out ones fewer can, by their share."""
        return int(self.train.extractable.sum()) if self.train.share > self.held_out.share else 0

    def stats(self) -> dict[str, Any]:
        sides = {"train": self.train, "held_out": self.held_out}
        return {
            "extractable_sentences": len(self.extraction.findings),
            "extractable_passages": self.beyond_chance,
            "sentences": self.extraction.stats(),
            **{name: {**told.stats(), "repeated_passages": self.repeated[name]} for name, told in sides.items()},
            "attack": None if self.attack is None else asdict(self.attack),
        }


def tell(model: GPT, passages: Passages, *, end_of_text: int, B: int) -> Told:
    return Told(passages, score_passages(model, passages, end_of_text=end_of_text, B=B))


def measure_leak(model: GPT, subject: Subject, questions: Questions, *, seed: int, **how: Any) -> Leak:
    """Ask a model for the passages and the sentences of one source; `how` as of tell."""
    train, held_out = (tell(model, passages, **how) for passages in (subject.train, subject.held_out))
    membership = attack(train.side(), held_out.side(), seed=seed)
    return Leak(train, held_out, subject.repeated, membership, extract(model, questions, seed=seed, **how))


def needed_log_pz(tries: int) -> float:
    """The least log probability with which so many samples hold the passage with probability 1/2."""
    return math.log(-math.expm1(math.log(0.5) / tries))
