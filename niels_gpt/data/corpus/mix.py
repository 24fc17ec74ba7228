"""Data mix: sampling probabilities of the sources, and the number of epochs a run makes over each."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass


def mix_probabilities(weights: Mapping[str, float], sources: Collection[str], *, name: str) -> dict[str, float]:
    """Return the weights normalized to sum to 1, without sources of weight 0.

    `name` is the table's key in the parameters (such as p_train), for error messages.
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
    """Size of a source in training tokens, its share of the samples (0 to 1), and the tokens sampled from it."""

    tokens: float
    share: float
    drawn: float

    @property
    def epochs(self) -> float:
        """Return the mean number of times each token of the source is sampled."""
        return self.drawn / self.tokens if self.tokens else 0.0


def exposures(weights: Mapping[str, float], tokens: Mapping[str, float], *, drawn: int) -> dict[str, Exposure]:
    """Return the exposure of each source under the weights of p_train.

    `tokens` has the training tokens of each source; `drawn` is the tokens the run samples, steps x `B` x `T`.
    """
    shares = mix_probabilities(weights, tokens, name="p_train")
    return {name: Exposure(size, shares.get(name, 0.0), shares.get(name, 0.0) * drawn) for name, size in tokens.items()}


def read_too_often(seen: Mapping[str, Exposure], *, most: int) -> list[str]:
    """Return a warning for every source that is sampled for more than `most` epochs."""
    return [
        f"{name} is sampled for {exposure.epochs:,.1f} epochs: no run of this size gained from more than {most}, and "
        f"repeated text is memorized; use fewer steps, a smaller p_train.{name}, or more text"
        for name, exposure in seen.items()
        if exposure.epochs > most
    ]
