"""Files of the split and duplicates stages: train and validation rows of a source, and its split constraints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.data.corpus.parts import Part, Texts, read_column, read_keys, reading_part
from niels_gpt.data.corpus.split import Bonds, Drawn, split_by_hash
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import Damaged, changed_files, described_by, list_files, name_all, read_meta


@dataclass(frozen=True)
class ByHash:
    """Split by hash, evaluated per row; `moved` lists the rows that duplicates put in "train", "val" or "out"."""

    rule: Drawn
    moved: dict[str, np.ndarray] = field(default_factory=dict)


Split = dict[str, np.ndarray] | ByHash  # {"train": row numbers, "val": row numbers}, or a rule


@dataclass(frozen=True)
class Splits:
    """Split of a source, with rows numbered over all parts, and the content of its split.json (`facts`)."""

    split: Split
    facts: dict[str, Any]

    def of_part(self, first: int, last: int) -> Split:
        """Return the split of the part with rows `first` to `last` (exclusive), renumbered from 0."""
        listed = self.split.moved if isinstance(self.split, ByHash) else self.split
        own = {name: rows[slice(*np.searchsorted(rows, (first, last)))] - first for name, rows in listed.items()}
        return ByHash(self.split.rule, own) if isinstance(self.split, ByHash) else own

    def by_part(self, texts: Texts) -> Iterator[tuple[Part, Split]]:
        """Yield each part with its split, rows numbered within the part."""
        first = 0
        for part in texts.parts:
            yield part, self.of_part(first, first + part.rows)
            first += part.rows


def part_rows(split: Split, path: Path) -> dict[str, np.ndarray]:
    """Return {"train": row numbers, "val": row numbers} of a part; a hash rule is applied to the keys in its file."""
    if not isinstance(split, ByHash):
        return split
    rows = split_by_hash(read_keys(path), split.rule)
    if any(map(len, split.moved.values())):
        moved = {side: split.moved.get(side, np.empty(0, dtype=np.int64)) for side in ("train", "val", "out")}
        # Take the moved rows off the side that the hash gave them, then add them to their own.
        every = np.concatenate(list(moved.values()))
        rows = {side: np.union1d(np.setdiff1d(own, every), moved[side]) for side, own in rows.items()}
        rows = {side: np.setdiff1d(own, moved["out"]) for side, own in rows.items()}
    return rows


def document_names(texts: Texts, splits: Splits) -> dict[str, list[str]]:
    """Return {"train": ids, "val": ids} of all rows, in order."""
    names: dict[str, list[str]] = {"train": [], "val": []}
    for part, split in splits.by_part(texts):
        with reading_part(texts.store, part) as path:
            ids = read_column(path, "id")
            for side, rows in part_rows(split, path).items():
                names[side] += [ids[row] for row in rows.tolist()]
    return names


def read_split(folder: Path, texts: Texts) -> Splits:
    """Read the split stage's output, after checking its files and that it was made from these texts."""
    path = folder / "split.json"
    facts = of_these(folder, read_checked(path), texts)
    with described_by(path):
        if facts["by"] == "hash":
            moved = {Path(file["path"]).stem: folder / Path(file["path"]).name for file in facts["files"]}
            rule = Drawn(val_frac=facts["val_frac"], seed=facts["seed"])
            return Splits(ByHash(rule, {side: np.load(file) for side, file in moved.items()}), facts=facts)
    return Splits({split: np.load(folder / f"{split}.npy") for split in ("train", "val")}, facts=facts)


def of_these(folder: Path, facts: dict[str, Any], texts: Texts) -> dict[str, Any]:
    """Return `facts` after checking, by SHA-256, that they describe exactly these texts."""
    if facts.get("texts_sha256") != texts.digest:
        raise Damaged(texts.store.root, f"is not what {folder} was made of", others=[folder])
    return facts


def read_checked(path: Path) -> dict[str, Any]:
    """Read a JSON file after checking size and SHA-256 of the files that it lists under "files", in its folder."""
    facts, folder = read_meta(path), path.parent
    with described_by(path):
        here = [{**file, "path": str(folder / Path(file["path"]).name)} for file in facts["files"]]
        bad = changed_files(here, root=Path())
    if bad:
        raise Damaged(folder, f"is not what was written: {name_all(bad)}")
    return facts


_FACTS = "bonds.json"
_ROWS = ("joined", "train", "val", "out")


def write_bonds(folder: Path, bonds: Bonds, *, texts_sha256: str, published: str) -> None:
    """Write the constraints as row numbers only, so that the bytes change only if the source or its constraints do."""
    folder.mkdir()
    for name in _ROWS:
        np.save(folder / f"{name}.npy", getattr(bonds, name))
    files = list_files(folder, "*.npy", published=published)
    write_json(folder / _FACTS, {"texts_sha256": texts_sha256, "files": files})


def read_bonds(folder: Path, texts: Texts) -> Bonds:
    """Read the constraints of a source, after checking that they were computed from these texts."""
    of_these(folder, read_checked(folder / _FACTS), texts)
    return Bonds(*(np.load(folder / f"{name}.npy") for name in _ROWS))
