"""Opening and checking the token files that a manifest or the data mix lists, as streams or as single documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.formats import read_offsets
from niels_gpt.cache.windows import OffsetFile, TokenFile, TokenStream
from niels_gpt.files.checks import Damaged, described_by, name_all, read_meta, sha256_file
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.files.store import Store
from niels_gpt.tokenizer.vocabulary import token_dtype


@dataclass(frozen=True)
class Listed:
    """File entry of a manifest: where it is, its size in bytes and its hash.

    `place` is the full path or URL. For a file in a bucket, `store` is set and `path` is where its local copy goes.
    """

    place: str
    path: Path
    bytes: int
    sha256: str
    store: Store | None = None

    def fault(self, *, vocab_size: int) -> str | None:
        """Return what is wrong with the file, or None; copy it from its bucket first if there is no local copy."""
        if self.store is not None and not self.path.is_file():
            with suppress(FileNotFoundError):
                self.store.fetch(self.place.removeprefix(self.store.place("")), self.path)
        if not self.path.is_file():
            return "missing"
        if self.path.stat().st_size != self.bytes or sha256_file(self.path) != self.sha256:
            return "changed"
        dtype = token_dtype(vocab_size)
        if self.path.suffix == ".bin" and TokenFile.whole(self.path, dtype).largest() >= vocab_size:
            return f"ids at or above V={vocab_size}"
        return None


@dataclass(frozen=True)
class Places:
    """Locations of the token files of all sources.

    A source has a folder of its own below `beside`, or lies in its store under the name `at` from its manifest. Files
    of a bucket are copied to `copies`.
    """

    beside: Path
    stores: Mapping[str, Store] = field(default_factory=dict)
    copies: Path = Path()

    def folder(self, source: str, at: str | None) -> Store:
        """Return the store that holds the files a manifest lists."""
        if at is None:
            return Store(str(self.beside / source))
        if source not in self.stores:
            raise ValueError(f"the tokens of {source} lie in a store, under {at}: name the store in runtime.stores")
        return self.stores[source].below(at)

    def path(self, source: str, at: str | None, file: str) -> Path:
        """Return the path of a file on this machine."""
        folder = self.folder(source, at)
        return self.copies / str(at) / file if folder.is_remote else folder.path(file)

    def listed(self, source: str, at: str | None, file: Mapping[str, Any]) -> Listed:
        """Return the entry of a file with its location on this machine."""
        folder, path = self.folder(source, at), self.path(source, at, file["file"])
        store = folder if folder.is_remote else None
        return Listed(folder.place(file["file"]), path, file["bytes"], file["sha256"], store)


@dataclass(frozen=True)
class Mix:
    """Token streams of all sources by name; `val_names` are the names of the validation sets in metrics."""

    vocab_size: int
    train: dict[str, TokenStream]
    val: dict[str, TokenStream]
    val_names: dict[str, str]


def open_mix(path: str | Path, *, places: Places, documents: bool = False, ranks: Ranks = ALONE) -> Mix:
    """Return the streams of a mix file after checking the hashes of its token files, divided among the ranks.

    With `documents`, streams have document offsets, so that attention can be masked between the documents of a window.
    Files are opened only when a window is read from them.
    """
    with described_by(path):
        return _open_mix(read_meta(path), places=places, documents=documents, ranks=ranks)


def _open_mix(mix: Mapping[str, Any], *, places: Places, documents: bool, ranks: Ranks) -> Mix:
    sources, dtype = mix["sources"], token_dtype(mix["vocab_size"])
    files = list(listed_files(sources, places, documents=documents))
    check_files(files, vocab_size=mix["vocab_size"], ranks=ranks)

    def stream(name: str, split: str) -> TokenStream:
        at, parts = sources[name].get("at"), sources[name][split]["parts"]
        files = [TokenFile(str(places.path(name, at, part["file"])), part["tokens"], dtype) for part in parts]
        offsets = [OffsetFile(str(places.path(name, at, part["offsets"]["file"]))) for part in parts]
        return TokenStream(files, documents=offsets if documents else None)

    return Mix(
        vocab_size=mix["vocab_size"],
        train={name: stream(name, "train") for name in sources},
        val={name: stream(name, "val") for name in sources},
        val_names={name: source["val_name"] for name, source in sources.items()},
    )


def check_files(files: Sequence[Listed], *, vocab_size: int, ranks: Ranks = ALONE) -> None:
    """Raise `Damaged`, naming every file that is missing, has changed, or has ids >= vocab_size.

    Each rank reads its share of the files; all ranks raise the same error.
    """
    own = ranks.files(files)
    found = ranks.exchange({file.place: fault for file in own if (fault := file.fault(vocab_size=vocab_size))})
    bad = {place: fault for one in found for place, fault in one.items()}
    if bad:
        first, *others = bad
        raise Damaged(first, f"differs from what the mix was made of: {name_all(bad)}", others=others)


def listed_files(sources: Mapping[str, Any], places: Places, *, documents: bool) -> Iterator[Listed]:
    """Yield the token files of all sources, and with `documents` also their offset files."""
    for name, source in sources.items():
        for part in (part for split in ("train", "val") for part in source[split]["parts"]):
            for file in (part, part["offsets"]) if documents else (part,):
                yield places.listed(name, source.get("at"), file)


def train_files(
    source: str, manifest: Mapping[str, Any], *, places: Places, vocab_size: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (local path, all ids) of each training file of a source."""
    for part in manifest["train"]["parts"]:
        path = places.path(source, manifest.get("at"), part["file"])
        yield str(path), TokenFile.whole(path, token_dtype(vocab_size))[:]


class TokenStore:
    """Random access to the documents of one split of a source; each is read from its file on request.

    `manifest` lists the files, which are checked first. `lengths` has the number of tokens of every document.
    """

    def __init__(
        self,
        source: str,
        manifest: Mapping[str, Any],
        *,
        places: Places,
        ranks: Ranks = ALONE,
        split: str = "train",
    ) -> None:
        files = list(listed_files({source: manifest}, places, documents=True))
        check_files(files, vocab_size=manifest["vocab_size"], ranks=ranks)
        parts, at, dtype = manifest[split]["parts"], manifest.get("at"), token_dtype(manifest["vocab_size"])
        self._tokens = [TokenFile.whole(places.path(source, at, part["file"]), dtype) for part in parts]
        offsets = [
            read_offsets(places.path(source, at, part["offsets"]["file"]), tokens=len(tokens))
            for part, tokens in zip(parts, self._tokens, strict=True)
        ]
        self._starts = [starts for starts, _ in offsets]
        self._lengths = [lengths for _, lengths in offsets]
        self.lengths = np.concatenate(self._lengths)
        self.trained_tokens = int(manifest["train"]["tokens"])  # pretraining samples from the first this many
        self._first = np.cumsum([0, *map(len, self._starts)])

    def document(self, row: int) -> np.ndarray:
        """Return the ids of document `row`, numbered over all files of the split."""
        if not 0 <= row < len(self.lengths):
            raise IndexError(f"there is no document {row} among {len(self.lengths):,}")
        part = int(np.searchsorted(self._first, row, side="right")) - 1
        start = self._starts[part][row - self._first[part]]
        return self._tokens[part][start : start + self.lengths[row]]
