"""Split constraints from duplicates: keep near duplicates on one side, so that no held-out text is trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from niels_gpt.data.corpus.parts import Texts, read_column, read_keys
from niels_gpt.data.corpus.split import Bonds, Drawn, components, split_by_hash
from niels_gpt.data.corpus.split_files import split_source
from niels_gpt.duplicates.pairs import Pairs


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

    def own(self, documents: np.ndarray) -> np.ndarray:
        """Return the row numbers of this source's among ascending documents (or pairs within a source)."""
        firsts = documents[:, 0] if documents.ndim == 2 else documents
        lo, hi = np.searchsorted(firsts, (self.first, self.first + self.texts.rows))
        return documents[lo:hi] - self.first


@dataclass(frozen=True)
class _Rows:
    """Rows of a source that have duplicates: row numbers (ascending), keys, the source's own splits, and groups.

    All rows of a group must be on one side of the split; -1 marks a row of none, an exact copy without near duplicates.
    """

    numbers: np.ndarray
    keys: list[str]
    splits: list[str | None]
    groups: np.ndarray


def bonds_of(sources: Sequence[SplitSource], pairs: Pairs, *, once: bool) -> dict[str, tuple[Bonds, dict[str, int]]]:
    """Return, by source, the constraints on its split and its counts; `once` drops all but one of equal texts.

    Where a group spans several sources, those that bring their own split decide its side, otherwise the first source;
    rows of the others follow. In a source with its own split no row changes sides: training rows that resemble a
    held-out row are dropped instead.
    """
    documents, clusters = components(pairs.documents)
    rows = _read_rows(sources, pairs)
    given = [rows[source.name] for source in sources if source.rule is None]
    said = [pair for own in given for pair in zip(own.groups.tolist(), own.splits, strict=True) if pair[0] >= 0]
    # A group in sources with their own split is held out if any of its rows is.
    sides: dict[int, str] = {group: side for side in ("train", "val") for group, split in said if split == side}
    found = {}
    for source in sources:
        own, bonds = rows[source.name], Bonds()
        if source.rule is not None:
            follow = _moved if source.by == "hash" else _joined
            bonds = follow(source, source.rule, own, sides)
        copies = source.own(pairs.copies)
        out = _left_out(own, sides, copies if once else copies[:0], given=source.rule is None)
        counts = {**_count(source, documents, clusters), "exact": len(copies), "left_out": len(out)}
        found[source.name] = (bonds._replace(out=out), counts)
    return found


def _read_rows(sources: Sequence[SplitSource], pairs: Pairs) -> dict[str, _Rows]:
    """Return, by source, its near duplicates and copies.

    Near duplicates share a group, and so do those of one tree (rows with the same key), since a tree is never split.
    """
    every = np.union1d(pairs.documents, pairs.copies)
    found, pairs_and_trees = [], [pairs.documents]
    for source in sources:
        numbers = source.own(every)
        keys: list[str] = []
        splits: list[str | None] = []
        for path, rows in source.texts.by_part(numbers):
            part_keys, part_splits = read_keys(path), read_column(path, "split")
            keys += [part_keys[row] for row in rows]
            splits += [part_splits[row] for row in rows]
        found.append((source, numbers, keys, splits))
        if source.by in ("tree", "hash"):
            first: dict[str, int] = {}
            grouped = np.flatnonzero(np.isin(numbers + source.first, pairs.documents))
            tree = [(first.setdefault(keys[place], numbers[place]), numbers[place]) for place in grouped]
            pairs_and_trees.append(np.array(tree, dtype=np.int64).reshape(-1, 2) + source.first)
    documents, groups = components(np.concatenate(pairs_and_trees))
    group_of = dict(zip(documents.tolist(), groups.tolist(), strict=True))
    rows_of = {}
    for source, numbers, keys, splits in found:
        own = [group_of.get(document, -1) for document in (numbers + source.first).tolist()]
        rows_of[source.name] = _Rows(numbers, keys, splits, np.array(own, dtype=np.int64))
    return rows_of


def _joined(source: SplitSource, rule: Drawn, rows: _Rows, sides: dict[int, str]) -> Bonds:
    """Return the constraints on a source that is split by document or tree: rows of a group are joined.

    Groups without a side get the one that `rule` puts them on, which is added to `sides` for later sources.
    """
    numbers, groups = rows.numbers[rows.groups >= 0], rows.groups[rows.groups >= 0]
    _, first, place = np.unique(groups, return_index=True, return_inverse=True)
    joined = np.stack([numbers[first[place]], numbers], axis=1)
    joined = joined[joined[:, 0] != joined[:, 1]]
    decided = np.array([sides.get(group, "") for group in groups.tolist()], dtype=object)
    bonds = Bonds(joined, *(numbers[decided == side] for side in ("train", "val")))
    if (decided == "").any():
        _, val = split_source(source.texts, source.by, rule, bonds)
        for group, held_out in zip(groups.tolist(), np.isin(numbers, val).tolist(), strict=True):
            sides.setdefault(group, "val" if held_out else "train")
    return bonds


def _moved(source: SplitSource, rule: Drawn, rows: _Rows, sides: dict[int, str]) -> Bonds:
    """Return the constraints on a source that is split by hash: rows of a group move to the side of its first key.

    A side that is already in `sides` takes precedence; the others are added to it.
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
    in_groups = zip(said, rows.groups.tolist(), strict=True) if given else ()
    out = {row for row, group in in_groups if said[row] == "train" and sides.get(group) == "val"}
    texts: dict[int, list[int]] = {}
    for first, later in copies.tolist():
        texts.setdefault(first, [first]).append(later)
    for same in texts.values():
        useful = [row for row in same if row not in out and (not given or said[row] in ("train", "val"))]
        if given:  # of a held-out text and its copy in training, keep the held-out one
            useful.sort(key=lambda row: said[row] != "val")
        out.update(useful[1:])
    return np.array(sorted(out), dtype=np.int64)


def _count(source: SplitSource, documents: np.ndarray, clusters: np.ndarray) -> dict[str, int]:
    here = (documents >= source.first) & (documents < source.first + source.texts.rows)
    return {
        "documents": source.texts.rows,
        "near": int(here.sum()),  # in a cluster of near duplicates
        "near_elsewhere": int(np.isin(clusters[here], clusters[~here]).sum()),  # the cluster has other sources', too
        "clusters": len(np.unique(clusters[here])),
    }
