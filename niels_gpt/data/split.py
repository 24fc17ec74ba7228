"""Train/validation splits by a seeded draw. Whatever is split (files, dialogues, documents, trees) stays whole."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Lt


@dataclass(frozen=True)
class Drawn:
    """What is held out is drawn by chance: single documents, or whole trees."""

    val_frac: Annotated[float, Ge(0), Lt(1), "share of the documents, or trees, that is held out"]
    seed: Annotated[int, Ge(0), Lt(2**63), "seed of the draw"]


def split_by_hash(keys: Sequence[str], rule: Drawn) -> dict[str, np.ndarray]:
    """{"train": row numbers, "val": row numbers} of rows with these keys (a document's id, or its tree's).

    Each row is decided by its own key and the seed, so that a part of a corpus is split without the rest of it.
    """
    key, bound = rule.seed.to_bytes(8, "big"), rule.val_frac * 2.0**64
    held_out = np.fromiter(
        (
            int.from_bytes(hashlib.blake2b(row.encode("utf-8"), digest_size=8, key=key).digest(), "big") < bound
            for row in keys
        ),
        dtype=bool,
        count=len(keys),
    )
    return {"train": np.flatnonzero(~held_out), "val": np.flatnonzero(held_out)}


def split_rows(n: int, *, val_frac: float = 0.1, seed: int) -> tuple[list[int], list[int]]:
    """(train, val) row numbers of n items, each in ascending order; fewer than two items leave val empty."""
    if not 0.0 <= val_frac < 1.0:
        raise ValueError(f"val_frac must be in [0, 1), got {val_frac}")
    if n < 2:
        return list(range(n)), []
    n_val = max(1, int(n * val_frac))
    order = _permutation(n, seed)
    return sorted(order[n_val:]), sorted(order[:n_val])


def _permutation(n: int, seed: int) -> list[int]:
    """What torch.randperm gives for the seed, without waiting two seconds for torch.

    It swaps each place with one behind it, by the next 32 bits of MT19937; a seed counts by its lowest 32 bits.
    """
    if n >= 2**32 // 20:
        raise ValueError(f"{n:,} documents are too many to draw from: split by: hash")
    bits = np.random.RandomState(seed % 2**32).randint(0, 2**32, size=n, dtype=np.uint32)
    behind = (bits[: n - 1] % (n - np.arange(n - 1))).tolist()
    order = list(range(n))
    for i, steps in enumerate(behind):
        order[i], order[i + steps] = order[i + steps], order[i]
    return order


def split_groups(groups: Sequence[str], *, val_frac: float = 0.1, seed: int) -> tuple[list[int], list[int]]:
    """The same for items that belong to groups (the threads of a tree): a group is held out whole."""
    names = list(dict.fromkeys(groups))
    held_out = {names[i] for i in split_rows(len(names), val_frac=val_frac, seed=seed)[1]}
    train = [i for i, group in enumerate(groups) if group not in held_out]
    return train, [i for i, group in enumerate(groups) if group in held_out]


def split_as_given(splits: Sequence[str | None]) -> tuple[list[int], list[int]]:
    """The same where every item says what it is for; one that says neither is in neither."""
    train, val = ([i for i, split in enumerate(splits) if split == name] for name in ("train", "val"))
    return train, val
