"""Who reads which example of an epoch."""

from __future__ import annotations

import numpy as np
import torch

from niels_gpt.rng import derive_seed, make_generator


def rank_indices(n: int, *, seed: int, epoch: int, rank: int, world_size: int) -> np.ndarray:
    """This rank's examples of an epoch of n: every world_size-th of one permutation that all ranks agree on."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..{world_size - 1}, got {rank}")
    order = torch.randperm(n, generator=make_generator(derive_seed(seed, "splice epoch", epoch)))
    return order.numpy()[rank::world_size]
