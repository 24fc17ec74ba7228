"""What a model tells of the text it was trained on, beside what it tells of text like it that it never saw.

Of held-out documents a passage can come out as well: by chance, or since everybody writes so. Only what comes out more
often of those that were trained on is a leak.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from niels_gpt.eval.membership import Attack, Side, attack
from niels_gpt.eval.passages import Documents, Passages, Scored, cut_passages, longest_run, score_passages
from niels_gpt.model.gpt import GPT

TRIES = (1, 10, 100, 1000)  # samples that a stranger takes; within the last of them a passage counts as extractable


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
            stats[f"{name}_found_in_n_samples"] = {str(n): int((logs >= needed_log_pz(n)).sum()) for n in TRIES}
        return stats


@dataclass(frozen=True)
class Leak:
    """One source under one model."""

    train: Told
    held_out: Told
    attack: Attack | None

    @property
    def beyond_chance(self) -> int:
        """Passages of train documents that can be extracted, where of held-out ones fewer can, by their share."""
        return int(self.train.extractable.sum()) if self.train.share > self.held_out.share else 0

    def stats(self) -> dict[str, Any]:
        return {
            "extractable_passages": self.beyond_chance,
            "train": self.train.stats(),
            "held_out": self.held_out.stats(),
            "attack": None if self.attack is None else asdict(self.attack),
        }


def tell(model: GPT, documents: Documents, *, end_of_text: int, B: int, seed: int = 0, **windows: Any) -> Told:
    """`windows` as of cut_passages."""
    passages = cut_passages(documents, seed=seed, **windows)
    return Told(passages, score_passages(model, passages, end_of_text=end_of_text, B=B))


def measure_leak(model: GPT, train: Documents, held_out: Documents, *, seed: int, **how: Any) -> Leak:
    """`how` as of tell."""
    sides = {"train": tell(model, train, seed=seed, **how), "held_out": tell(model, held_out, seed=seed, **how)}
    return Leak(**sides, attack=attack(*(told.side() for told in sides.values()), seed=seed))


def needed_log_pz(tries: int) -> float:
    """The least log probability with which so many samples hold the passage with probability 1/2."""
    return math.log(-math.expm1(math.log(0.5) / tries))
