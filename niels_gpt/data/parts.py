"""Parts of a source: parquet files of a bounded size, and the manifest that lists them. All that follows is done a part
at a time, so that no corpus is too large for a machine's memory, nor for one machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.data.documents import read_column, read_keys, read_texts
from niels_gpt.files.checksums import sha256_file
from niels_gpt.files.damage import Damaged
from niels_gpt.files.descriptions import described_by, read_meta
from niels_gpt.files.store import Store

MANIFEST = "manifest.json"  # in a source's folder; the parts lie beside it, or in a store


@dataclass(frozen=True)
class Part:
    """A parquet file of documents or chats: its name, and which bytes it has."""

    file: str
    rows: int
    text_bytes: int
    bytes: int
    sha256: str

    @property
    def name(self) -> str:
        return Path(self.file).stem


@dataclass(frozen=True)
class Texts:
    """The parts of a source in order, where they lie, and what else the manifest says. `digest` names these texts: it
    is the manifest's own sha256, and the manifest has one for each part."""

    store: Store
    parts: tuple[Part, ...]
    facts: Mapping[str, Any]
    digest: str

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def text_bytes(self) -> int:
        return sum(part.text_bytes for part in self.parts)

    def column(self, name: str) -> list[Any]:
        """One short column of all rows."""
        values: list[Any] = []
        for part in self.parts:
            with reading_part(self.store, part) as path:
                values += read_column(path, name)
        return values

    def keys(self) -> list[str]:
        """By what a rule holds each row out: its group, or its own id."""
        keys: list[str] = []
        for part in self.parts:
            with reading_part(self.store, part) as path:
                keys += read_keys(path)
        return keys


def open_texts(folder: Path, *, stored: Store | None = None) -> Texts:
    """What the load stage made: beside the manifest in `folder`, or below `stored` where the manifest says so."""
    path = folder / MANIFEST
    facts = read_meta(path, required=["name", "parts"])
    with described_by(path):
        parts = tuple(Part(**part) for part in facts.pop("parts"))
        at = facts.pop("at", None)
    if at is not None and stored is None:
        raise ValueError(f"{path} says that its parts lie in a store, under {at}: name the store in runtime.stores")
    return Texts(
        store=Store(str(folder)) if at is None or stored is None else stored.below(at),
        parts=parts,
        facts=facts,
        digest=sha256_file(path),
    )


def manifest_of(parts: Sequence[Part], facts: Mapping[str, Any], *, at: str | None) -> dict[str, Any]:
    """What the manifest says. `at`: where in the store the parts lie; None where they lie beside it."""
    where = {} if at is None else {"at": at}
    return {
        **facts,
        **where,
        "rows": sum(part.rows for part in parts),
        "bytes": sum(part.text_bytes for part in parts),
        "parts": [asdict(part) for part in parts],
    }


def first_documents(texts: Texts, n: int) -> Iterator[tuple[str, str]]:
    """(id, text) of the first n."""
    for part in texts.parts:
        with reading_part(texts.store, part) as path:
            rows = np.arange(min(n, part.rows))
            found = (text for batch in read_texts(path, rows) for text in batch)
            yield from zip(read_column(path, "id"), found, strict=False)
        n -= part.rows
        if n <= 0:
            return


@contextmanager
def reading_part(store: Store, part: Part) -> Iterator[Path]:
    """The part on this machine's disk, once it is known to be the one that the manifest lists."""
    if store.size(part.file) is None:
        raise Damaged(store.place(part.file), "is missing: make it again")
    with store.reading(part.file) as path:
        if sha256_file(path) != part.sha256:
            raise Damaged(store.place(part.file), "is not what its manifest says (changed): make it again")
        yield path
