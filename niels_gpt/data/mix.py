"""The data mix: weights of sources become the probabilities with which rows of a batch are drawn from them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping


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
