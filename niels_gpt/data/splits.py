"""What the split stage wrote, read back: which rows of a source are train, and which are held out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.data.documents import read_column, read_keys
from niels_gpt.data.parts import Texts, reading_part
from niels_gpt.data.split import Drawn, split_by_hash
from niels_gpt.files.checksums import changed_files, name_all
from niels_gpt.files.damage import Damaged
from niels_gpt.files.descriptions import described_by, read_meta

Split = dict[str, np.ndarray] | Drawn  # {"train": row numbers, "val": row numbers}, or a rule that decides row by row


@dataclass(frozen=True)
class Splits:
    """Which rows of a source are train and which are held out, numbered over all parts."""

    split: Split
    facts: dict[str, Any]

    def of_part(self, first: int, last: int) -> Split:
        """The same of the part that has rows `first` to `last`, numbered within it."""
        if isinstance(self.split, Drawn):
            return self.split
        return {name: rows[slice(*np.searchsorted(rows, (first, last)))] - first for name, rows in self.split.items()}


def part_rows(split: Split, path: Path) -> dict[str, np.ndarray]:
    """Row numbers of a part: those listed, or those that the rule decides by what the part's file says of each row."""
    return split_by_hash(read_keys(path), split) if isinstance(split, Drawn) else split


def document_names(texts: Texts, splits: Splits) -> dict[str, list[str]]:
    """By split, the ids of its rows in order."""
    names: dict[str, list[str]] = {"train": [], "val": []}
    first = 0
    for part in texts.parts:
        with reading_part(texts.store, part) as path:
            ids = read_column(path, "id")
            for split, rows in part_rows(splits.of_part(first, first + part.rows), path).items():
                names[split] += [ids[row] for row in rows.tolist()]
        first += part.rows
    return names


def read_split(folder: Path, texts: Texts) -> Splits:
    """What the split stage wrote, of texts that are still those it split."""
    path = folder / "split.json"
    facts = _read_checked(path)
    if facts.get("texts_sha256") != texts.digest:
        raise Damaged(texts.store.root, f"is not what {folder} was made of", others=[folder])
    with described_by(path):
        if facts["by"] == "hash":
            return Splits(Drawn(val_frac=facts["val_frac"], seed=facts["seed"]), facts=facts)
    return Splits({split: np.load(folder / f"{split}.npy") for split in ("train", "val")}, facts=facts)


def _read_checked(path: Path) -> dict[str, Any]:
    """What a JSON file says of its folder, once the files that it lists under "files" are known to be as written."""
    facts, folder = read_meta(path), path.parent
    with described_by(path):
        here = [{**file, "path": str(folder / Path(file["path"]).name)} for file in facts["files"]]
        bad = changed_files(here, root=Path())
    if bad:
        raise Damaged(folder, f"is not what was written: {name_all(bad)}")
    return facts
