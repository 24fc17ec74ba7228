"""Sharding an epoch over data-parallel ranks: who reads which example."""

from __future__ import annotations

import numpy as np


def epoch_order(n: int, *, seed: int, epoch: int) -> np.ndarray:
    """The order in which the n examples of an epoch are read: a permutation that all ranks agree on."""
    import torch  # here: who only asks for the rules of spans does not wait for it

    from niels_gpt.rng import derive_seed, make_generator

    return torch.randperm(n, generator=make_generator(derive_seed(seed, "splice epoch", epoch))).numpy()


def rank_indices(n: int, *, seed: int, epoch: int, rank: int, world_size: int) -> np.ndarray:
    """One reader's examples of an epoch of n, for a loader in each of several processes: every world_size-th of the
    common order. (The trainer's own ranks draw whole batches alike and share out the rows of each.)"""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..{world_size - 1}, got {rank}")
    return epoch_order(n, seed=seed, epoch=epoch)[rank::world_size]
