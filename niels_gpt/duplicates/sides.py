"""Split constraints from duplicates: keep near duplicates on one side, so that no held-out text is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from niels_gpt.data.corpus.parts import Texts, read_column, read_keys
from niels_gpt.data.corpus.split import Bonds, Drawn, components, split_by_hash, split_source
from niels_gpt.duplicates.pairs import Pairs, find_pairs, read_sketches

# Estimate, between short texts (one hash a word, 6 bytes) and long ones (one hash in 8 words).
_BYTES_PER_HASH = 16


@dataclass(frozen=True)
class SplitSource:
    """Source with its texts and split rule; `rule` is None where the source brings its own split.

    `first` is the number of its first row among the rows of all sources.
    """

    name: str
    texts: Texts
    first: int
    by: Literal["given", "document", "tree", "hash"]
    rule: Drawn | None


@dataclass(frozen=True)
class Counts:
    """Duplicate counts of a source, in documents (except `clusters`)."""

    documents: int
    exact: int  # with the same text as an earlier one of this source
    near: int  # in a cluster of near duplicates
    near_elsewhere: int  # in a cluster that has documents of other sources, too
    clusters: int  # with at least one document of this source
    left_out: int  # in neither train nor val


@dataclass(frozen=True)
class _Rows:
    """Rows of a source that have duplicates: row numbers (ascending), keys, the source's own splits, and groups.

    All rows of a group must be on one side of the split; -1 marks a row of none, an exact copy without near duplicates.
    """

    numbers: np.ndarray
    keys: list[str]
    splits: list[str | None]
    groups: np.ndarray


def pairs_of(sources: Sequence[SplitSource], *, near: float | None, scratch: Path) -> Pairs:
    """Return the near duplicates and copies among the documents of all sources; `near`: the least containment."""
    hashes = sum(source.texts.text_bytes for source in sources) // _BYTES_PER_HASH
    batches = ((source.first, read_sketches(source.texts)) for source in sources)
    return find_pairs(batches, near=near, hashes=hashes, scratch=scratch)


def bonds_of(sources: Sequence[SplitSource], pairs: Pairs, *, once: bool) -> dict[str, tuple[Bonds, Counts]]:
    """Return, by source, the constraints on its split and its counts; `once` drops all but one of equal texts.

    Where a group spans several sources, those that bring their own split decide its side, otherwise the first source;
    rows of the others follow. In a source with its own split no row changes sides: training rows that resemble a
    held-out row are dropped instead.
    """
    documents, clusters = components(pairs.documents)
    rows = _joined_by_key(sources, _read_rows(sources, documents, clusters, pairs.copies), pairs.documents)
    given_first = sorted(sources, key=lambda source: source.rule is not None)
    given = [rows[source.name] for source in sources if source.rule is None]
    said = [pair for own in given for pair in zip(own.groups.tolist(), own.splits, strict=True) if pair[0] >= 0]
    # A group in sources with their own split is held out if any of its rows is.
    sides: dict[int, str] = {group: side for side in ("train", "val") for group, split in said if split == side}
    found = {}
    for number, source in enumerate(given_first):
        waiting = {group for other in given_first[number + 1 :] for group in rows[other.name].groups.tolist()}
        bonds = Bonds() if source.rule is None else _followed(source, source.rule, rows[source.name], sides, waiting)
        copies = _own(pairs.copies, source)
        out = _left_out(rows[source.name], sides, copies if once else copies[:0], given=source.rule is None)
        counts = _count(source, documents, clusters, copies=len(copies), left_out=len(out))
        found[source.name] = (Bonds(bonds.joined, bonds.train, bonds.val, out), counts)
    return found


def _own(documents: np.ndarray, source: SplitSource) -> np.ndarray:
    """Select this source's from ascending documents (or pairs within a source), and convert them to row numbers."""
    column = documents if documents.ndim == 1 else documents[:, 0]
    lo, hi = np.searchsorted(column, (source.first, source.first + source.texts.rows))
    return documents[lo:hi] - source.first


def _read_rows(
    sources: Sequence[SplitSource], documents: np.ndarray, clusters: np.ndarray, copies: np.ndarray
) -> dict[str, _Rows]:
    """Return, by source, the rows that are in a cluster or a copy, with their clusters as groups."""
    every = np.union1d(documents, copies)
    groups = np.full(len(every), -1)
    groups[np.searchsorted(every, documents)] = clusters
    found = {}
    for source in sources:
        numbers = _own(every, source)
        keys: list[str] = []
        splits: list[str | None] = []
        for path, rows in source.texts.by_part(numbers):
            part_keys, part_splits = read_keys(path), read_column(path, "split")
            keys += [part_keys[row] for row in rows]
            splits += [part_splits[row] for row in rows]
        found[source.name] = _Rows(numbers, keys, splits, groups[np.searchsorted(every, numbers + source.first)])
    return found


def _joined_by_key(sources: Sequence[SplitSource], rows: dict[str, _Rows], pairs: np.ndarray) -> dict[str, _Rows]:
    """Merge the groups that share a key, since a tree (documents with one key) is never split."""
    trees = [np.empty((0, 2), dtype=np.int64)]
    for source in sources:
        if source.by in ("tree", "hash"):
            own, first = rows[source.name], dict[str, int]()
            tied = [
                (source.first + first.setdefault(key, number), source.first + number)
                for number, key, group in zip(own.numbers.tolist(), own.keys, own.groups.tolist(), strict=True)
                if group >= 0
            ]
            trees.append(np.array(tied, dtype=np.int64).reshape(-1, 2))
    documents, groups = components(np.concatenate([pairs, *trees]))
    found = {}
    for source in sources:
        own = rows[source.name]
        grouped = own.groups >= 0
        wider = own.groups.copy()
        wider[grouped] = groups[np.searchsorted(documents, own.numbers[grouped] + source.first)]
        found[source.name] = replace(own, groups=wider)
    return found


def _followed(source: SplitSource, rule: Drawn, rows: _Rows, sides: dict[int, str], waiting: set[int]) -> Bonds:
    """Return the constraints on a source that is split by `rule`.

    Groups without a side that later sources have, too (`waiting`), are decided here and added to `sides`.
    """
    numbers, groups = rows.numbers[rows.groups >= 0], rows.groups[rows.groups >= 0]
    _, first, place = np.unique(groups, return_index=True, return_inverse=True)
    joined = np.stack([numbers[first[place]], numbers], axis=1)
    joined = joined[joined[:, 0] != joined[:, 1]]
    decided = np.array([sides.get(group, "") for group in groups.tolist()], dtype=object)
    bonds = Bonds(joined, *(numbers[decided == side] for side in ("train", "val")))
    if source.by == "hash":
        return _moved(source, rule, rows, sides)
    mine = [group not in sides and group in waiting for group in groups.tolist()]
    if any(mine):
        texts = source.texts
        _, val = split_source(source.by, rule, bonds, rows=texts.rows, splits=list, keys=lambda: list(texts.keys()))
        held_out = np.isin(numbers, val)
        sides.update(
            (group, "val" if held else "train")
            for group, held, own in zip(groups.tolist(), held_out, mine, strict=True)
            if own
        )
    return bonds


def _moved(source: SplitSource, rule: Drawn, rows: _Rows, sides: dict[int, str]) -> Bonds:
    """For hash-split sources, move every row of a group's keys to the side its first key falls on.

    A side that is already in `sides` takes precedence.
    """
    by_key = {key: group for key, group in zip(rows.keys, rows.groups.tolist(), strict=True) if group >= 0}
    firsts: dict[int, str] = {}
    for key, group in by_key.items():
        firsts.setdefault(group, key)
    held_out = set(split_by_hash(list(firsts.values()), rule)["val"].tolist())
    for place, group in enumerate(firsts):
        sides.setdefault(group, "val" if place in held_out else "train")
    moved: dict[str, list[int]] = {"train": [], "val": []}
    for row, key in enumerate(source.texts.keys()) if by_key else ():
        if key in by_key:
            moved[sides[by_key[key]]].append(row)
    return Bonds(train=np.array(moved["train"], dtype=np.int64), val=np.array(moved["val"], dtype=np.int64))


def _left_out(rows: _Rows, sides: dict[int, str], copies: np.ndarray, *, given: bool) -> np.ndarray:
    """Return the rows to drop: all but one of equal texts, and if `given` training rows in a held-out group."""
    said = dict(zip(rows.numbers.tolist(), rows.splits, strict=True))
    out = set()
    if given:
        groups = dict(zip(rows.numbers.tolist(), rows.groups.tolist(), strict=True))
        out = {row for row, split in said.items() if split == "train" and sides.get(groups[row]) == "val"}
    texts: dict[int, list[int]] = {}
    for first, later in copies.tolist():
        texts.setdefault(first, [first]).append(later)
    for same in texts.values():
        useful = [row for row in same if row not in out and (not given or said[row] in ("train", "val"))]
        if given:  # of a held-out text and its copy in training, keep the held-out one
            useful.sort(key=lambda row: said[row] != "val")
        out.update(useful[1:])
    return np.array(sorted(out), dtype=np.int64)


def _count(source: SplitSource, documents: np.ndarray, clusters: np.ndarray, *, copies: int, left_out: int) -> Counts:
    last = source.first + source.texts.rows
    here = (documents >= source.first) & (documents < last)
    elsewhere = np.isin(clusters[here], clusters[~here])
    return Counts(
        documents=source.texts.rows,
        exact=copies,
        near=int(here.sum()),
        near_elsewhere=int(elsewhere.sum()),
        clusters=len(np.unique(clusters[here])),
        left_out=left_out,
    )
