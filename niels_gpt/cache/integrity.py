"""Consistency of caches: what a split, or a file of offsets, says of other files is compared with them first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_gpt.data.split import Drawn
from niels_gpt.files.checksums import changed_files, name_all
from niels_gpt.files.damage import Damaged
from niels_gpt.files.descriptions import described_by, read_meta

if TYPE_CHECKING:  # who only trains needs no parquet
    from niels_gpt.data.parts import Texts


def read_checked(path: Path) -> dict[str, Any]:
    """What a JSON file says of its folder, once the files that it lists under "files" are known to be as written."""
    facts, folder = read_meta(path), path.parent
    with described_by(path):
        here = [{**file, "path": str(folder / Path(file["path"]).name)} for file in facts["files"]]
        bad = changed_files(here, root=Path())
    if bad:
        raise Damaged(folder, f"is not what was written: {name_all(bad)}")
    return facts


@dataclass(frozen=True)
class Splits:
    """Which rows of a source are train and which are held out: a list of them (by number over all parts), or a rule
    that decides row by row."""

    rows: dict[str, np.ndarray] | None
    rule: Drawn | None
    facts: dict[str, Any]

    def of_part(self, first: int, last: int) -> dict[str, np.ndarray] | None:
        """Row numbers within the part that has rows `first` to `last`; None where the rule decides."""
        if self.rows is None:
            return None
        return {name: rows[slice(*np.searchsorted(rows, (first, last)))] - first for name, rows in self.rows.items()}


def read_split(folder: Path, texts: Texts) -> Splits:
    """What the split stage wrote, of texts that are still those it split."""
    path = folder / "split.json"
    facts = read_checked(path)
    if facts.get("texts_sha256") != texts.digest:
        raise Damaged(texts.store.root, f"is not what {folder} was made of", others=[folder])
    with described_by(path):
        if facts["by"] == "hash":
            return Splits(rows=None, rule=Drawn(val_frac=facts["val_frac"], seed=facts["seed"]), facts=facts)
    return Splits({split: np.load(folder / f"{split}.npy") for split in ("train", "val")}, rule=None, facts=facts)


def read_offsets(path: str | Path, *, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """(starts, lengths), once they are known to describe a file of so many tokens."""
    try:
        starts = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:  # on foreign bytes numpy's reader fails in many ways: EOFError, SyntaxError, ...
        raise Damaged(path, f"is no file of offsets ({error}): build it again") from error
    fits = isinstance(starts, np.ndarray) and starts.dtype == np.int64 and starts.ndim == 1 and len(starts) > 0
    # Compared, not subtracted: a difference of two wild numbers can wrap around to a plausible one.
    if not fits or starts[0] != 0 or (starts[1:] <= starts[:-1]).any() or starts[-1] >= tokens:
        raise Damaged(path, f"does not hold the ascending offsets of {tokens:,} tokens: build it again")
    return starts, np.diff(np.append(starts, tokens))
