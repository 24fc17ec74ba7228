"""Token streams: access by number to all windows of T+1 tokens of a source, without loading its files.

A stream is a list of arrays (one byte string, or the token files of a source). No window crosses from one array into
the next. Windows are numbered over all arrays, so a uniformly random number is a uniformly random window. A file is
opened only while a window is read from it.

A stream may also have document offsets, from which attention is masked between the documents of a window. The
end-of-turn token cannot serve for that, since nothing rules it out within a document.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPE, read_offsets
from niels_gpt.files.checks import Damaged, described_by, file_problem, name_all, read_meta
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.files.store import Store
from niels_gpt.tokenizer.vocabulary import token_dtype

if TYPE_CHECKING:
    import torch

# Files are read a slice at a time and never kept open or memory-mapped: a corpus may have more files than a process may
# open, and more bytes than it should map. Opening, reading and closing a file takes 8 us per window (with 15,000 files
# 1.5 times as long as with 4), and the kernel reads only the window's pages. mmap was as fast with 4 files but slower
# with 15,000, since pages have to be released again; and it reads ahead around a window, by default 128 KiB.


@dataclass(frozen=True)
class TokenFile:
    """Array-like view of the first `tokens` ids of a file; slicing it reads them."""

    path: str
    tokens: int
    dtype: np.dtype = TOKEN_DTYPE

    @classmethod
    def whole(cls, path: str | Path, dtype: np.dtype = TOKEN_DTYPE) -> "TokenFile":
        size, each = Path(path).stat().st_size, dtype.itemsize
        if size == 0 or size % each:
            what = f"is no token file ({size} bytes, where a whole number of {each}-byte ids is expected)"
            raise Damaged(path, f"{what}: build it again")
        return cls(str(path), size // each, dtype)

    def __len__(self) -> int:
        return self.tokens

    def __getitem__(self, places: slice) -> np.ndarray:
        start, stop, _ = places.indices(self.tokens)
        each = self.dtype.itemsize
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            data = os.pread(descriptor, each * (stop - start), each * start)
        finally:
            os.close(descriptor)
        if len(data) < each * (stop - start):
            raise Damaged(self.path, "is shorter than it was when it was checked: build it again")
        return np.frombuffer(data, self.dtype)


class TokenStream:
    """Tokens of one source and split, in memory or in files; only the windows that are asked for are copied.

    `documents` has the ascending document offsets of each array, or their .npy file, which is loaded when a window
    first falls into the array; None: no boundaries.
    """

    def __init__(
        self, arrays: Sequence[np.ndarray | TokenFile], *, documents: Sequence[np.ndarray | Path] | None = None
    ) -> None:
        assert documents is None or len(documents) == len(arrays), "offsets are those of each array"
        self.arrays, self.documents = list(arrays), None if documents is None else list(documents)
        self.lengths = np.array([len(array) for array in arrays], dtype=np.int64)
        self._ends: dict[int, np.ndarray] = {}  # T -> result of _window_ends

    @classmethod
    def of(cls, source: "bytes | TokenStream") -> "TokenStream":
        """Return a stream unchanged, or wrap bytes as one (one token per byte)."""
        return source if isinstance(source, TokenStream) else cls([np.frombuffer(source, dtype=np.uint8)])

    def __len__(self) -> int:
        return int(self.lengths.sum())

    def windows(self, T: int) -> int:
        return int(self._window_ends(T)[-1])

    def gather(self, numbers: np.ndarray, T: int) -> np.ndarray:
        """Return the windows with these numbers: `(n, T+1)` int64."""
        rows = [self.arrays[i][start : start + T + 1] for i, start in self._places(numbers, T)]
        # Concatenate in the stored dtype and convert once: a third faster at B=32 than row by row.
        return np.concatenate((np.empty(0, dtype=np.uint8), *rows)).reshape(len(rows), T + 1).astype(np.int64)

    def segments(self, numbers: np.ndarray, T: int) -> np.ndarray | None:
        """Return the document index, from 0, of the first T tokens of each window: `(n, T)` int64.

        None if the stream has no document offsets.
        """
        if self.documents is None:
            return None
        # A 1 where a document begins, except at the window's first token, which is in document 0 either way; the
        # running sum then numbers the documents.
        begun = np.zeros((len(numbers), T), dtype=np.int64)
        for row, (i, start) in enumerate(self._places(numbers, T)):
            if isinstance(offsets := self.documents[i], Path):
                offsets = self.documents[i] = np.load(offsets)
            begun[row, offsets[slice(*np.searchsorted(offsets, (start + 1, start + T)))] - start] = 1
        return begun.cumsum(axis=1)

    def _places(self, numbers: np.ndarray, T: int) -> list[tuple[int, int]]:
        """Return (array index, start within the array) of each window."""
        ends = self._window_ends(T)
        which = np.searchsorted(ends[1:], numbers, side="right")
        return list(zip(which.tolist(), (numbers - ends[which]).tolist(), strict=True))

    def _window_ends(self, T: int) -> np.ndarray:
        """Return the cumulative number of windows: 0, then the total up to and including each array."""
        if T not in self._ends:
            self._ends[T] = np.concatenate(([0], np.maximum(0, self.lengths - T).cumsum()))
        return self._ends[T]


def check_lengths(streams: Mapping[str, Mapping[str, TokenStream]], *, T: int) -> None:
    """Raise a ValueError listing every stream, given as {split: {source: stream}}, without a window of T+1 tokens."""
    short = [
        f"{name} {split} has {len(stream):,}"
        for split, sources in streams.items()
        for name, stream in sources.items()
        if stream.windows(T) < 1
    ]
    if short:
        raise ValueError(
            f"too short for a window of T+1 = {T + 1} tokens: {', '.join(short)}; add text, lower model.T, or raise "
            "parts.text_bytes where parts are cut smaller than a window"
        )


def split_targets(rows: "torch.Tensor", *, device: str) -> "tuple[torch.Tensor, torch.Tensor]":
    """Split `(B, T+1)` rows into inputs x and targets y, each `(B, T)` on `device`."""
    rows = rows.to(device)
    return rows[:, :-1], rows[:, 1:]


# Token files that a manifest or the data mix lists, checked and opened as streams or as single documents.


@dataclass(frozen=True)
class Listed:
    """File entry of a manifest: its store and name there, its size in bytes and its hash.

    `path` is where it is read: the file itself, or a local copy if the store is a bucket.
    """

    store: Store
    file: str
    path: Path
    bytes: int
    sha256: str

    def problem(self) -> str | None:
        """Return what is wrong with the file, or None; copy it from its bucket first if there is no local copy."""
        if self.store.is_remote and not self.path.is_file():
            with suppress(FileNotFoundError):
                self.store.fetch(self.file, self.path)
        return file_problem(self.path, size=self.bytes, sha256=self.sha256)


@dataclass(frozen=True)
class Places:
    """Locations of the token files of all sources.

    A source has a folder of its own below `beside`, or lies in its store under the name "at" of its manifest. Files of
    a bucket are copied to `copies`.
    """

    beside: Path
    stores: Mapping[str, Store] = field(default_factory=dict)
    copies: Path = Path()

    def folder(self, source: str, manifest: Mapping[str, Any]) -> tuple[Store, Path]:
        """Return the store with the files that a manifest lists, and the local folder in which they are read."""
        at = manifest.get("at")
        if at is None:
            return Store(str(self.beside / source)), self.beside / source
        if source not in self.stores:
            raise ValueError(f"the tokens of {source} lie in a store, under {at}: name the store in runtime.stores")
        store = self.stores[source].below(at)
        return store, self.copies / at if store.is_remote else store.path("")


D = TypeVar("D")  # what a source is opened as: a TokenStream, or a dataset of chats


@dataclass(frozen=True)
class Mix(Generic[D]):
    """Sources by name, opened; `val_names` are the names of the validation sets in metrics."""

    vocab_size: int
    train: dict[str, D]
    val: dict[str, D]
    val_names: dict[str, str]


def open_mix(path: str | Path, *, places: Places, documents: bool = False, ranks: Ranks = ALONE) -> Mix[TokenStream]:
    """Return the streams of a mix file after checking the hashes of its token files, divided among the ranks.

    With `documents`, streams have document offsets, so that attention can be masked between the documents of a window.
    Files are opened only when a window is read from them.
    """
    with described_by(path):
        mix = read_meta(path)
        sources, dtype = mix["sources"], token_dtype(mix["vocab_size"])
        check_files(list(listed_files(sources, places, documents=documents)), ranks=ranks)

        def stream(name: str, split: str) -> TokenStream:
            (_, folder), parts = places.folder(name, sources[name]), sources[name][split]["parts"]
            files = [TokenFile(str(folder / part["file"]), part["tokens"], dtype) for part in parts]
            offsets = [folder / part["offsets"]["file"] for part in parts]
            return TokenStream(files, documents=offsets if documents else None)

        return Mix(
            vocab_size=mix["vocab_size"],
            train={name: stream(name, "train") for name in sources},
            val={name: stream(name, "val") for name in sources},
            val_names={name: source["val_name"] for name, source in sources.items()},
        )


def check_files(files: Sequence[Listed], *, ranks: Ranks = ALONE) -> None:
    """Raise `Damaged`, naming every file that is missing or has changed; each rank reads its share of the files."""
    own = {file.store.place(file.file): problem for file in ranks.files(files) if (problem := file.problem())}
    raise_problems(own, ranks=ranks)


def raise_problems(own: Mapping[str, str], *, ranks: Ranks) -> None:
    """Raise the same `Damaged` on all ranks if any of them found a problem, given as {file: problem}."""
    bad = {place: problem for found in ranks.exchange(own) for place, problem in found.items()}
    if bad:
        first, *others = bad
        raise Damaged(first, f"differs from what the mix was made of: {name_all(bad)}", others=others)


def listed_files(sources: Mapping[str, Any], places: Places, *, documents: bool) -> Iterator[Listed]:
    """Yield the token files of all sources, and with `documents` also their offset files."""
    for name, source in sources.items():
        store, folder = places.folder(name, source)
        for part in (part for split in ("train", "val") for part in source[split]["parts"]):
            for file in (part, part["offsets"]) if documents else (part,):
                yield Listed(store, file["file"], folder / file["file"], file["bytes"], file["sha256"])


def train_files(
    source: str, manifest: Mapping[str, Any], *, places: Places, vocab_size: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (local path, all ids) of each training file of a source."""
    _, folder = places.folder(source, manifest)
    for part in manifest["train"]["parts"]:
        path = folder / part["file"]
        yield str(path), TokenFile.whole(path, token_dtype(vocab_size))[:]


class TokenStore:
    """Random access to the documents of one split of a source; each is read from its file on request.

    `manifest` lists the files, which are checked first. `lengths` has the number of tokens of every document.
    """

    def __init__(
        self, source: str, manifest: Mapping[str, Any], *, places: Places, ranks: Ranks = ALONE, split: str = "train"
    ) -> None:
        check_files(list(listed_files({source: manifest}, places, documents=True)), ranks=ranks)
        (_, folder), parts = places.folder(source, manifest), manifest[split]["parts"]
        self._tokens = [TokenFile.whole(folder / part["file"], token_dtype(manifest["vocab_size"])) for part in parts]
        offsets = [
            read_offsets(folder / part["offsets"]["file"], tokens=len(tokens))
            for part, tokens in zip(parts, self._tokens, strict=True)
        ]
        self._starts = [starts for starts, _ in offsets]
        self.lengths = np.concatenate([lengths for _, lengths in offsets])
        self.trained_tokens = int(manifest["train"]["tokens"])  # pretraining samples from the first this many
        self._first = np.cumsum([0, *map(len, self._starts)])

    def document(self, row: int) -> np.ndarray:
        """Return the ids of document `row`, numbered over all files of the split."""
        if not 0 <= row < len(self.lengths):
            raise IndexError(f"there is no document {row} among {len(self.lengths):,}")
        part = int(np.searchsorted(self._first, row, side="right")) - 1
        start = self._starts[part][row - self._first[part]]
        return self._tokens[part][start : start + self.lengths[row]]
