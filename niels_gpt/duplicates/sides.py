"""Duplicates decided: what of each source stands on which side of its split, so that no text is held out in one place
and trained on in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from niels_gpt.data.corpus.parts import Texts
from niels_gpt.data.corpus.split import Bonds, Drawn, components, split_by_hash, split_source
from niels_gpt.duplicates.pairs import Pairs, find_pairs
from niels_gpt.duplicates.sketches import read_sides, read_sketches, rows_of_keys


@dataclass(frozen=True)
class SplitSource:
    """A source as duplicates see it: its sketches, the number of its first row among those of all sources, and how it
    is split. `rule` is None where the source itself says it."""

    name: str
    sketches: Texts
    first: int
    by: Literal["given", "document", "tree", "hash"]
    rule: Drawn | None


@dataclass(frozen=True)
class Counts:
    """Of a source: its documents; those whose text an earlier one has; those that are near duplicates of another, in
    whichever source, and of one elsewhere; the clusters these form; and what is left out of train and val."""

    documents: int
    exact: int
    near: int
    near_elsewhere: int
    clusters: int
    left_out: int


@dataclass(frozen=True)
class _Rows:
    """The rows of a source that have duplicates: numbers, ascending; of each its key, what the source says of it, and
    the group that must stand on one side (-1: none, a copy that nothing is joined to)."""

    numbers: np.ndarray
    keys: list[str]
    splits: list[str | None]
    groups: np.ndarray


def pairs_of(sources: Sequence[SplitSource], *, near: float | None, scratch: Path) -> Pairs:
    hashes = sum(part.bytes for source in sources for part in source.sketches.parts) // 8
    batches = ((source.first, read_sketches(source.sketches)) for source in sources)
    return find_pairs(batches, near=near, hashes=hashes, scratch=scratch)


def bonds_of(sources: Sequence[SplitSource], pairs: Pairs, *, once: bool) -> dict[str, tuple[Bonds, Counts]]:
    """What follows for each source. Of a group in several sources, those that bring their own split decide, and then
    the first: rows of the others follow. Where a source brings its split, no row changes sides; what is like a held-out
    row is left out of its training."""
    documents, clusters = components(pairs.documents)
    rows = _joined_by_key(sources, _read_rows(sources, documents, clusters, pairs.copies), pairs.documents)
    given_first = sorted(sources, key=lambda source: source.rule is not None)
    sides = _sides_given([rows[source.name] for source in sources if source.rule is None])
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
    """Of documents of all sources, ascending (or pairs of one source each), those of this one, as its rows."""
    column = documents if documents.ndim == 1 else documents[:, 0]
    lo, hi = np.searchsorted(column, (source.first, source.first + source.sketches.rows))
    return documents[lo:hi] - source.first


def _read_rows(
    sources: Sequence[SplitSource], documents: np.ndarray, clusters: np.ndarray, copies: np.ndarray
) -> dict[str, _Rows]:
    every = np.union1d(documents, copies)
    groups = np.full(len(every), -1)
    groups[np.searchsorted(every, documents)] = clusters
    found = {}
    for source in sources:
        numbers = _own(every, source)
        keys, splits = read_sides(source.sketches, numbers)
        found[source.name] = _Rows(numbers, keys, splits, groups[np.searchsorted(every, numbers + source.first)])
    return found


def _joined_by_key(sources: Sequence[SplitSource], rows: dict[str, _Rows], pairs: np.ndarray) -> dict[str, _Rows]:
    """The rows with larger groups: clusters that have documents of one tree are one, since a tree stays whole."""
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
        found[source.name] = _Rows(own.numbers, own.keys, own.splits, wider)
    return found


def _sides_given(given: Sequence[_Rows]) -> dict[int, str]:
    """The sides of groups of which a source with its own split has a document: held-out where one of them is."""
    said = [pair for rows in given for pair in zip(rows.groups.tolist(), rows.splits, strict=True) if pair[0] >= 0]
    return {group: side for side in ("train", "val") for group, split in said if split == side}


def _followed(source: SplitSource, rule: Drawn, rows: _Rows, sides: dict[int, str], waiting: set[int]) -> Bonds:
    """How the rows of a source are bound; `sides` gets those of the groups that this source is the first to have."""
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
        count = source.sketches.rows
        _, val = split_source(
            source.by,
            rule,
            bonds,
            rows=count,
            splits=list,
            keys=lambda: read_sides(source.sketches, np.arange(count))[0],
        )
        held_out = np.isin(numbers, val)
        sides.update(
            (group, "val" if held else "train")
            for group, held, own in zip(groups.tolist(), held_out, mine, strict=True)
            if own
        )
    return bonds


def _moved(source: SplitSource, rule: Drawn, rows: _Rows, sides: dict[int, str]) -> Bonds:
    """Of a source whose rows are asked one by one: all rows of a group's keys, by name, on the side of its first."""
    by_key = {key: group for key, group in zip(rows.keys, rows.groups.tolist(), strict=True) if group >= 0}
    firsts: dict[int, str] = {}
    for key, group in by_key.items():
        firsts.setdefault(group, key)
    held_out = set(split_by_hash(list(firsts.values()), rule)["val"].tolist())
    for place, group in enumerate(firsts):
        sides.setdefault(group, "val" if place in held_out else "train")
    moved: dict[str, list[int]] = {"train": [], "val": []}
    for row, key in rows_of_keys(source.sketches, set(by_key)) if by_key else ():
        moved[sides[by_key[key]]].append(row)
    return Bonds(train=np.array(moved["train"], dtype=np.int64), val=np.array(moved["val"], dtype=np.int64))


def _left_out(rows: _Rows, sides: dict[int, str], copies: np.ndarray, *, given: bool) -> np.ndarray:
    """Rows for neither side: in a source with its own split, training rows like a held-out one; of equal texts, all but
    the first that is of use."""
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
        if given:  # held-out text is not to go missing for a copy of it in training
            useful.sort(key=lambda row: said[row] != "val")
        out.update(useful[1:])
    return np.array(sorted(out), dtype=np.int64)


def _count(source: SplitSource, documents: np.ndarray, clusters: np.ndarray, *, copies: int, left_out: int) -> Counts:
    last = source.first + source.sketches.rows
    here = (documents >= source.first) & (documents < last)
    elsewhere = np.isin(clusters[here], clusters[~here])
    return Counts(
        documents=source.sketches.rows,
        exact=copies,
        near=int(here.sum()),
        near_elsewhere=int(elsewhere.sum()),
        clusters=len(np.unique(clusters[here])),
        left_out=left_out,
    )
