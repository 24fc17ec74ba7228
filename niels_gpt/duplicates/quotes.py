"""Search for quotes: runs of 300 or more characters that occur in a held-out document and in a training document.

All of them are found, without comparing pairs of documents, in 3 steps:
1. Hash seeds of 145 characters: in held-out text one at every 12th character, in training text one at every 13th. As 12
   and 13 have no common divisor, any shared run of 300 characters (12 * 13 + 145 - 1) has a seed that both sides hash.
2. Around held-out seeds that also occur in training text, hash every window of 300 characters, and look for these in
   the training documents that have such seeds. A hash match counts only if the characters are equal.
3. Merge the held-out windows that were found: their unions are the quotes.

Only held-out seeds are kept in memory (8 bytes per 12 characters). Training text is streamed part by part, once; only
documents that share a seed are read again.

Characters are normalized by `duplicates/characters.py`. Each message of a chat is a text of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from niels_gpt.data.corpus.parts import CHAT_SCHEMA, Part, Texts, opened, read_chats, read_texts, reading_part
from niels_gpt.data.corpus.sketch import hash_ranges
from niels_gpt.data.corpus.split_files import Split, Splits, part_rows
from niels_gpt.duplicates.characters import Characters, chat_key, compared, document_key
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import Engine, Worker

QUOTE = 300  # characters, the shortest quote
_STEPS = {"val": 12, "train": 13}
_SEED = QUOTE - _STEPS["val"] * _STEPS["train"] + 1
# Separators between texts: lone surrogates, which no UTF-8 text has. They differ by side, so no match spans two texts.
_BETWEEN = {"val": "\ud800", "train": "\ud801"}
_COMPARED_AT_ONCE = 1 << 14  # windows, which bounds the memory of a comparison

Spans = dict[str, list[tuple[int, int]]]


@dataclass(frozen=True)
class PartToSearch:
    """Part of a source, the split of its rows, and the folder `wanted` with the hashes to look for.

    `documents`: numbers, within the side, of the documents to read; None reads all.
    """

    source: str
    texts: Store
    part: Part
    split: Split
    wanted: Path
    documents: np.ndarray | None = None

    @property
    def name(self) -> str:
        return f"{self.source}/{self.part.name}"


@dataclass(frozen=True)
class Quotes:
    """Quotes in the held-out documents of a source, and their total number of characters.

    `spans`: {`document_key` or `chat_key`: (start, end) of each quote in bytes of the UTF-8 text}. The text of a chat
    is the concatenated contents of its messages.
    """

    spans: Spans
    characters: int


def find_quotes(engine: Engine, sources: Mapping[str, tuple[Texts, Splits]], *, scratch: Path) -> dict[str, Quotes]:
    """Return, by source, the quotes its held-out documents share with the training documents of all sources."""
    items = [
        PartToSearch(name, texts.store, part, split, scratch)
        for name, (texts, splits) in sources.items()
        for part, split in splits.by_part(texts)
    ]
    found = {name: Quotes({}, 0) for name in sources}
    seeds = {item.name: hashes for item, hashes in engine.map(held_out_seeds, items, tick=bool)}
    wanted = np.unique(np.concatenate([_no_hashes(), *seeds.values()]))
    np.save(scratch / "seeds.npy", wanted)
    shared = np.zeros(len(wanted), dtype=bool)
    training = []
    for item, (places, documents) in engine.map(seeds_in_training, items, tick=bool):
        shared[places] = True
        if len(documents):
            training.append(replace(item, documents=documents))
    if not training:
        return found
    wanted = wanted[shared]
    np.save(scratch / "seeds.npy", wanted)
    held_out = [item for item in items if len(_Lookup(wanted).find(seeds[item.name])[0])]
    del seeds
    codes = np.concatenate([codes for _, codes in engine.map(held_out_windows, held_out, tick=bool)])
    begins = np.arange(len(codes) - QUOTE + 1)
    hashes, firsts = np.unique(hash_ranges(codes, begins, begins + QUOTE), return_index=True)
    _Windows(hashes, firsts, codes).save(scratch)
    shared = np.zeros(len(hashes), dtype=bool)
    for _, places in engine.map(windows_in_training, training, tick=bool):
        shared[places] = True
    _Windows(hashes[shared], firsts[shared], codes).save(scratch)
    for item, quotes in engine.map(held_out_quotes, held_out, tick=bool):
        found[item.source].spans.update(quotes.spans)
        total = found[item.source].characters + quotes.characters
        found[item.source] = replace(found[item.source], characters=total)
    return {name: Quotes(dict(sorted(quotes.spans.items())), quotes.characters) for name, quotes in found.items()}


def held_out_seeds(item: PartToSearch, worker: Worker) -> np.ndarray:
    """Return the distinct hashes of the seeds in held-out rows."""
    seeds = [characters.hashes(_SEED, step=_STEPS["val"])[1] for characters in _read(item, "val")]
    return np.unique(np.concatenate([_no_hashes(), *seeds]))


def seeds_in_training(item: PartToSearch, worker: Worker) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the wanted seeds found in training rows, and the numbers of the documents with one."""
    wanted = np.load(item.wanted / "seeds.npy")
    lookup, found, documents = _Lookup(wanted), np.zeros(len(wanted), dtype=bool), [np.empty(0, dtype=np.int64)]
    for characters in _read(item, "train") if len(wanted) else ():
        begins, hashes = characters.hashes(_SEED, step=_STEPS["train"])
        hit, places = lookup.find(hashes)
        found[places] = True
        documents.append(characters.owners_of(begins[hit]))
    return np.flatnonzero(found), np.unique(np.concatenate(documents))


def held_out_windows(item: PartToSearch, worker: Worker) -> np.ndarray:
    """Return the characters around seeds found in training text: they contain every window that may be a quote."""
    lookup, found = _Lookup(np.load(item.wanted / "seeds.npy")), [np.empty(0, dtype=np.uint32)]
    for characters in _read(item, "val"):
        begins, hashes = characters.hashes(_SEED, step=_STEPS["val"])
        begins = begins[lookup.find(hashes)[0]]
        for first, last in _union(np.maximum(0, begins + _SEED - QUOTE), begins + QUOTE):
            found += [characters.codes[first:last], np.array([ord(_BETWEEN["val"])], dtype=np.uint32)]
    return np.concatenate(found)


def windows_in_training(item: PartToSearch, worker: Worker) -> np.ndarray:
    """Return the indices of the wanted windows that occur in training rows, character for character."""
    windows = _Windows.load(item.wanted)
    found = np.zeros(len(windows.hashes), dtype=bool)
    for characters in _read(item, "train"):
        found[windows.equal(characters, unless=found)[1]] = True
    return np.flatnonzero(found)


def held_out_quotes(item: PartToSearch, worker: Worker) -> Quotes:
    """Return the quotes: merged windows that were found, as byte ranges of each document."""
    windows, spans, total = _Windows.load(item.wanted), Spans(), 0
    with reading_part(item.texts, item.part) as path:
        chats = _holds_chats(path)
    for characters in _read(item, "val"):
        begins, _ = windows.equal(characters)
        for document, start, end, count in characters.spans(*_union(begins, begins + QUOTE).T):
            key = chat_key(characters.whole(document)) if chats else document_key(item.part.name, document)
            spans.setdefault(key, []).append((start, end))
            total += count
    return Quotes({key: sorted({*own}) for key, own in spans.items()}, total)


@dataclass(frozen=True)
class _Windows:
    """Windows of held-out text to look for: their hashes, ascending, and the start of each in `codes`."""

    hashes: np.ndarray
    begins: np.ndarray
    codes: np.ndarray

    @cached_property
    def _lookup(self) -> _Lookup:
        return _Lookup(self.hashes)

    @classmethod
    def load(cls, folder: Path) -> _Windows:
        return cls(*(np.load(folder / f"{name}.npy") for name in ("hashes", "begins", "codes")))

    def save(self, folder: Path) -> None:
        for name, values in vars(self).items():
            np.save(folder / f"{name}.npy", values)

    def equal(self, characters: Characters, *, unless: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return (start in `characters`, window index) of each occurrence, verified character by character.

        `unless` is a mask of windows already found: these are skipped, and others are reported once.
        """
        at, hashes = characters.hashes(QUOTE)
        hit, places = self._lookup.find(hashes)
        if unless is not None:
            places, first = np.unique(places, return_index=True)
            places, hit = places[~unless[places]], hit[first][~unless[places]]
        same = [np.empty(0, dtype=bool)]
        for start in range(0, len(hit), _COMPARED_AT_ONCE):
            some = slice(start, start + _COMPARED_AT_ONCE)
            a, b = (begins[:, None] + np.arange(QUOTE) for begins in (self.begins[places[some]], at[hit[some]]))
            same.append((self.codes[a] == characters.codes[b]).all(axis=1))
        kept = np.concatenate(same)
        return at[hit[kept]], places[kept]


def _read(item: PartToSearch, side: str) -> Iterator[Characters]:
    """Yield the normalized characters of a side's documents, or of `item.documents`, in batches."""
    with reading_part(item.texts, item.part) as path:
        numbers = np.arange(len(rows := part_rows(item.split, path)[side]))
        if item.documents is not None:
            rows, numbers = rows[item.documents], item.documents
        read, done = (read_chats if _holds_chats(path) else read_texts), 0
        for batch in read(path, rows) if len(rows) else ():
            texts = [[message["content"] for message in row] if isinstance(row, list) else [row] for row in batch]
            owners = np.repeat(numbers[done : done + len(texts)], [len(own) for own in texts])
            yield compared([text for own in texts for text in own], owners, between=_BETWEEN[side])
            done += len(texts)


def _union(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Merge ranges, given in ascending order, that overlap or touch; return (start, end) of each, (n, 2)."""
    if not len(begins):
        return np.empty((0, 2), dtype=np.int64)
    gaps = np.flatnonzero(begins[1:] > ends[:-1])
    return np.stack([begins[np.append(0, gaps + 1)], ends[np.append(gaps, len(ends) - 1)]], axis=1)


class _Lookup:
    """Index of ascending hashes: a bitmap of their high bits rejects most others without a binary search."""

    def __init__(self, hashes: np.ndarray) -> None:
        self._hashes = hashes
        bits = min(24, (16 * len(hashes)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._table = np.zeros(1 << bits, dtype=bool)
        self._table[hashes >> self._shift] = True

    def find(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (indices of `hashes` that are in the index, their indices in it)."""
        if not len(self._hashes):
            return (np.empty(0, dtype=np.int64),) * 2
        likely = np.flatnonzero(self._table[hashes >> self._shift])
        places = np.minimum(np.searchsorted(self._hashes, hashes[likely]), len(self._hashes) - 1)
        hit = self._hashes[places] == hashes[likely]
        return likely[hit], places[hit]


def _holds_chats(path: Path) -> bool:
    with opened(path) as file:
        return bool(file.schema_arrow == CHAT_SCHEMA)


def _no_hashes() -> np.ndarray:
    return np.empty(0, dtype=np.uint64)
