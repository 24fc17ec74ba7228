"""The data mix: probabilities of sources, and how many times a run reads each of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass


def mix_probabilities(weights: Mapping[str, float], sources: Collection[str], *, name: str) -> dict[str, float]:
    """Normalise a table of weights; sources of weight 0 are left out of the draw.

    `name` is what the table is called where the user wrote it (p_train), for the message when it makes no sense.
    """
    unknown = sorted(set(weights) - set(sources))
    if unknown:
        raise ValueError(f"{name} has weights for {unknown}, which are no sources; there are: {sorted(sources)}")
    bad = {key: weight for key, weight in weights.items() if not (math.isfinite(weight) and weight >= 0)}
    if bad:
        raise ValueError(f"{name} has weights that are not finite numbers >= 0: {bad}")
    total = sum(weights.values())
    if total <= 0:
        raise ValueError(f"{name} has no weight above 0: give at least one source a positive weight")
    return {key: weight / total for key, weight in sorted(weights.items()) if weight > 0}


@dataclass(frozen=True)
class Exposure:
    """A source of so many training tokens, from which a share of all rows is drawn."""

    tokens: float
    share: float
    drawn: float

    @property
    def epochs(self) -> float:
        """How many times over its text is read, on average."""
        return self.drawn / self.tokens if self.tokens else 0.0


def exposures(weights: Mapping[str, float], tokens: Mapping[str, float], *, drawn: int) -> dict[str, Exposure]:
    """By the weights of p_train, for a run that draws so many tokens in all (steps x B x T)."""
    shares = mix_probabilities(weights, tokens, name="p_train")
    return {name: Exposure(size, shares.get(name, 0.0), shares.get(name, 0.0) * drawn) for name, size in tokens.items()}


def read_too_often(seen: Mapping[str, Exposure], *, most: int) -> list[str]:
    """A sentence for every source that is read more often than so many times."""
    return [
        f"{name} is read {exposure.epochs:,.1f} times over: in runs of this size more than {most} bought nothing and "
        f"made held-out text worse, and what is read often is known by heart; take fewer steps, a smaller "
        f"p_train.{name}, or more text"
        for name, exposure in seen.items()
        if exposure.epochs > most
    ]
