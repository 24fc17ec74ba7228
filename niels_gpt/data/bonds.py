"""How duplicates bind the rows of each source, on disk: written for all sources at once, read by the split of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from niels_gpt.data.parts import Texts
from niels_gpt.data.split import Bonds
from niels_gpt.data.splits import of_these, read_checked
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checksums import list_files

_FACTS = "bonds.json"
_ROWS = ("joined", "train", "val", "out")


def write_bonds(folder: Path, bonds: Bonds, *, texts_sha256: str, published: str) -> None:
    """Row numbers alone: equal bytes where the source is the same, and other texts say the same of it."""
    folder.mkdir()
    for name in _ROWS:
        np.save(folder / f"{name}.npy", getattr(bonds, name))
    files = list_files(folder, "*.npy", published=published)
    write_json(folder / _FACTS, {"texts_sha256": texts_sha256, "files": files})


def read_bonds(folder: Path, texts: Texts) -> Bonds:
    """Of texts that are still those whose duplicates were looked for."""
    of_these(folder, read_checked(folder / _FACTS), texts)
    return Bonds(*(np.load(folder / f"{name}.npy") for name in _ROWS))
