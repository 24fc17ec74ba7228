"""The manifest of a source's token files, and its documents by number.

`mix` joins them; training checks them before it reads.
"""

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


@dataclass(frozen=True)
class Listed:
    """A file that a manifest lists: its path on this machine, and which bytes it has. Where it lies in a bucket,
    `store` is that, and the path is one to copy it to."""

    place: str
    path: Path
    bytes: int
    sha256: str
    store: Store | None = None

    def fault(self, *, vocab_size: int) -> str | None:
        """Return what is wrong with the file, or None; fetch it first if it lies in a remote store."""
        if self.store is not None and not self.path.is_file():
            with suppress(FileNotFoundError):
                self.store.fetch(self.place.removeprefix(self.store.place("")), self.path)
        if not self.path.is_file():
            return "missing"
        if self.path.stat().st_size != self.bytes or sha256_file(self.path) != self.sha256:
            return "changed"
        if self.path.suffix == ".bin" and TokenFile.whole(self.path).largest() >= vocab_size:
            return f"ids at or above V={vocab_size}"
        return None


@dataclass(frozen=True)
class Places:
    """Where the token files of each source lie: in a folder of its own below `beside`, or in its store, under what its
    manifest says. Files of a bucket are copied to `copies`."""

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
        folder, path = self.folder(source, at), self.path(source, at, file["file"])
        store = folder if folder.is_remote else None
        return Listed(folder.place(file["file"]), path, file["bytes"], file["sha256"], store)


@dataclass(frozen=True)
class Mix:
    """Every source's tokens, read a window at a time, by the source's name, and what its held-out part is called in
    metrics."""

    vocab_size: int
    train: dict[str, TokenStream]
    val: dict[str, TokenStream]
    val_names: dict[str, str]


def open_mix(path: str | Path, *, places: Places, documents: bool = False, ranks: Ranks = ALONE) -> Mix:
    """The token files that a mix file names, once each is known to be the one it was made of: of several ranks each
    hashes its share of them. They are opened when a window falls into them.

    With `documents`, streams know where theirs begin, and those that share a window do not see each other.
    """
    with described_by(path):
        return _open_mix(read_meta(path), places=places, documents=documents, ranks=ranks)


def _open_mix(mix: Mapping[str, Any], *, places: Places, documents: bool, ranks: Ranks) -> Mix:
    sources = mix["sources"]
    files = list(listed_files(sources, places, documents=documents))
    check_files(files, vocab_size=mix["vocab_size"], ranks=ranks)

    def stream(name: str, split: str) -> TokenStream:
        at, parts = sources[name].get("at"), sources[name][split]["parts"]
        files = [TokenFile(str(places.path(name, at, part["file"])), part["tokens"]) for part in parts]
        offsets = [OffsetFile(str(places.path(name, at, part["offsets"]["file"]))) for part in parts]
        return TokenStream(files, documents=offsets if documents else None)

    return Mix(
        vocab_size=mix["vocab_size"],
        train={name: stream(name, "train") for name in sources},
        val={name: stream(name, "val") for name in sources},
        val_names={name: source["val_name"] for name, source in sources.items()},
    )


def check_files(files: Sequence[Listed], *, vocab_size: int, ranks: Ranks = ALONE) -> None:
    """Raise, naming every file that is absent, not what the mix was made of, or has ids that the model has not. Of
    several ranks each reads its share of the files, and all refuse alike."""
    own = ranks.files(files)
    found = ranks.exchange({file.place: fault for file in own if (fault := file.fault(vocab_size=vocab_size))})
    bad = {place: fault for one in found for place, fault in one.items()}
    if bad:
        first, *others = bad
        raise Damaged(first, f"differs from what the mix was made of: {name_all(bad)}", others=others)


def listed_files(sources: Mapping[str, Any], places: Places, *, documents: bool) -> Iterator[Listed]:
    """The token files of all sources, and with `documents` also the files of offsets."""
    for name, source in sources.items():
        for part in (part for split in ("train", "val") for part in source[split]["parts"]):
            for file in (part, part["offsets"]) if documents else (part,):
                yield places.listed(name, source.get("at"), file)


def train_files(source: str, manifest: Mapping[str, Any], *, places: Places) -> Iterator[tuple[str, np.ndarray]]:
    """(where it lies, ids) of each of a source's training files, on this machine."""
    for part in manifest["train"]["parts"]:
        path = places.path(source, manifest.get("at"), part["file"])
        yield str(path), TokenFile.whole(path)[:]


class TokenStore:
    """Documents of one split of a source, each read from its file when it is asked for. `manifest` lists the files."""

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
        parts, at = manifest[split]["parts"], manifest.get("at")
        self._tokens = [TokenFile.whole(places.path(source, at, part["file"])) for part in parts]
        offsets = [
            read_offsets(places.path(source, at, part["offsets"]["file"]), tokens=len(tokens))
            for part, tokens in zip(parts, self._tokens, strict=True)
        ]
        self._starts = [starts for starts, _ in offsets]
        self._lengths = [lengths for _, lengths in offsets]
        self.lengths = np.concatenate(self._lengths)
        self.trained_tokens = int(manifest["train"]["tokens"])  # pretraining draws from the first so many
        self._first = np.cumsum([0, *map(len, self._starts)])

    def document(self, row: int) -> np.ndarray:
        if not 0 <= row < len(self.lengths):
            raise IndexError(f"there is no document {row} among {len(self.lengths):,}")
        part = int(np.searchsorted(self._first, row, side="right")) - 1
        start = self._starts[part][row - self._first[part]]
        return self._tokens[part][start : start + self.lengths[row]]
