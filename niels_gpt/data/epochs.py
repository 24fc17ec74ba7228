"""What a run will see of each source: how many of its rows, and so how many times over its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from niels_gpt.data.mix import mix_probabilities


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
