"""Train/validation splits by seeded sampling of whole units (files, dialogues, documents or message trees)."""

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from niels_gpt.rng import permutation


@dataclass(frozen=True)
class Drawn:
    """Split rule that samples the validation set at random, by document or by tree."""

    val_frac: Annotated[float, Ge(0), Lt(1), "share of the documents, or trees, that is held out"]
    seed: Annotated[int, Ge(0), Lt(2**63), "random seed of the split"]


@dataclass(frozen=True)
class DuplicateRules:
    """Parameters for exact and near duplicates."""

    exact: Annotated[Literal["once", "keep"], "equal texts of a source: used once, or as often as they are there"] = (
        "once"
    )
    near: Annotated[
        Annotated[float, Gt(0), Le(1)] | None,
        "documents stay on one side of every split where so much of the smaller stands in the other; null: no matter",
    ] = 0.5


_NO_ROWS = np.empty(0, dtype=np.int64)


class Bonds(NamedTuple):
    """Constraints that duplicates put on the split of a source, as row numbers; empty if it has no duplicates.

    `joined`, `(n, 2)`: pairs of rows that must be on the same side. `train` and `val`: rows that their duplicates fix
    to that side. `out`: rows excluded from both sides.
    """

    joined: np.ndarray = _NO_ROWS.reshape(0, 2)
    train: np.ndarray = _NO_ROWS
    val: np.ndarray = _NO_ROWS
    out: np.ndarray = _NO_ROWS


def joined_units(units: Iterable[Hashable], joined: np.ndarray) -> list[int]:
    """Return each row's unit, by the number of its first row, after merging those of the pairs in `joined`, (n, 2)."""
    first: dict[Hashable, int] = {}
    numbers = np.array([first.setdefault(unit, row) for row, unit in enumerate(units)], dtype=np.int64)
    ids, roots = components(numbers[joined])
    merged = dict(zip(ids.tolist(), roots.tolist(), strict=True))
    return [merged.get(number, number) for number in numbers.tolist()]


def components(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (the distinct numbers in `pairs`, ascending; the smallest number of each one's connected component).

    Labels are propagated along the pairs by minimum, with pointer jumping (`new[new]`), so that a chain of n numbers
    takes about log2(n) rounds.
    """
    ids, places = np.unique(pairs, return_inverse=True)
    a, b = places.reshape(-1, 2).T
    names = np.arange(len(ids))
    while True:
        least = np.minimum(names[a], names[b])
        new = names.copy()
        for where in (a, b, names[a], names[b]):
            np.minimum.at(new, where, least)
        new = new[new]
        if np.array_equal(new, names):
            return ids, ids[names]
        names = new


def split_by_hash(keys: Sequence[str], rule: Drawn) -> dict[str, np.ndarray]:
    """Return {"train": row numbers, "val": row numbers} of rows with these keys (ids of documents or of trees).

    A row's side depends only on its key and the seed, so each part of a corpus can be split without the others.
    """
    # Hold a row out if its 64-bit hash, keyed by the seed, is in the lowest `val_frac` of the range.
    key, bound = rule.seed.to_bytes(8, "big"), rule.val_frac * 2.0**64
    hashes = (hashlib.blake2b(row.encode("utf-8"), digest_size=8, key=key).digest() for row in keys)
    held_out = np.array([int.from_bytes(digest, "big") < bound for digest in hashes], dtype=bool)
    return {"train": np.flatnonzero(~held_out), "val": np.flatnonzero(held_out)}


def split_rows(n: int, *, val_frac: float = 0.1, seed: int) -> tuple[list[int], list[int]]:
    """Return ascending (train, val) row numbers of n items; val has at least 1 item, but none if n < 2."""
    if not 0.0 <= val_frac < 1.0:
        raise ValueError(f"val_frac must be in [0, 1), got {val_frac}")
    if n < 2:
        return list(range(n)), []
    n_val = max(1, int(n * val_frac))
    order = permutation(n, seed)
    return sorted(order[n_val:]), sorted(order[:n_val])


def split_groups(groups: Sequence[Hashable], *, val_frac: float = 0.1, seed: int) -> tuple[list[int], list[int]]:
    """Return (train, val) row numbers of items in groups (such as the threads of a tree), each group on one side."""
    names = list(dict.fromkeys(groups))
    held_out = {names[i] for i in split_rows(len(names), val_frac=val_frac, seed=seed)[1]}
    train = [i for i, group in enumerate(groups) if group not in held_out]
    return train, [i for i, group in enumerate(groups) if group in held_out]
