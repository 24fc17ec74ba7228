"""Overlap of held-out text with training text: the share of its 13-grams (runs of 13 words) in both, and quotes.

Hashes of the held-out 13-grams are kept in memory; training text is streamed part by part.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from niels_gpt.chat_format import chat_key
from niels_gpt.data.corpus.parts import Texts, read_contents, read_wording
from niels_gpt.data.corpus.sketch import Lookup, Words, grams, hash_runs, words_of
from niels_gpt.data.corpus.split_files import SplitPart, Splits
from niels_gpt.jobs.engine import Engine, Worker

RUN = 13  # words; GPT-3's contamination analysis (Brown et al., 2020) uses 13-grams, too


@dataclass(frozen=True)
class PartToRead:
    """Part of a source; `documents` are the numbers, within a side, of the documents to read (None: all)."""

    source: str
    part: SplitPart
    documents: np.ndarray | None = None

    @property
    def name(self) -> str:
        return f"{self.source}/{self.part.name}"


def parts_to_read(sources: Mapping[str, tuple[Texts, Splits]]) -> list[PartToRead]:
    """Return all parts of all sources."""
    return [PartToRead(name, part) for name, (texts, splits) in sources.items() for part in splits.by_part(texts)]


def distinct(hashes: Iterable[np.ndarray]) -> np.ndarray:
    """Return all hashes once, ascending."""
    return np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *hashes]))


def measure_overlap(
    engine: Engine, sources: Mapping[str, tuple[Texts, Splits]], *, scratch: Path
) -> dict[str, Counter[str]]:
    """Return, by source, the overlap of its held-out text with the training text of all sources.

    Counted are its 13-grams ("runs") and characters, and how many of each are also in training text ("runs_found",
    "characters_found"). Three passes: collect the hashes of held-out runs, look for them in training text, and count
    what was found.
    """
    items, wanted = parts_to_read(sources), scratch / "runs.npy"
    runs = distinct(found for _, found in engine.map(held_out_runs, items, tick=bool))
    save_shared(runs, wanted, engine.map(partial(runs_in_training, wanted=wanted), items, tick=bool))
    total = {name: Counter[str]() for name in sources}
    for item, overlap in engine.map(partial(overlap_of_part, wanted=wanted), items, tick=bool):
        total[item.source].update(overlap)
    return total


def save_shared(hashes: np.ndarray, path: Path, found: Iterable[tuple[PartToRead, np.ndarray]]) -> None:
    """Save the hashes for workers that yield, by part, the indices of those they found; then save only these."""
    np.save(path, hashes)
    shared = np.zeros(len(hashes), dtype=bool)
    for _, places in found:
        shared[places] = True
    np.save(path, hashes[shared])


def held_out_runs(item: PartToRead, worker: Worker) -> np.ndarray:
    """Return the distinct hashes of all runs in the part's held-out rows."""
    return distinct(runs for _, runs, _ in _runs(item, "val"))


def runs_in_training(item: PartToRead, worker: Worker, *, wanted: Path) -> np.ndarray:
    """Return the indices of the wanted hashes that occur in the part's training rows."""
    lookup = Lookup(np.load(wanted))
    for _, runs, _ in _runs(item, "train"):
        lookup.find(runs)
    return lookup.found()


def overlap_of_part(item: PartToRead, worker: Worker, *, wanted: Path) -> Counter[str]:
    """Count the runs of the part's held-out rows, those in training text, and the characters these cover."""
    lookup, total = Lookup(np.load(wanted)), Counter[str]()
    for words, runs, starts in _runs(item, "val"):
        found = starts[lookup.find(runs)]
        covered = np.diff(_union(words.begins[found], words.ends[found + RUN - 1])).sum()
        total.update(runs=len(runs), runs_found=len(found), characters=words.characters, characters_found=int(covered))
    return total


def _runs(item: PartToRead, side: str) -> Iterator[tuple[Words, np.ndarray, np.ndarray]]:
    """Yield (words, hashes of their runs, index of each run's first word) of a side's rows, in batches."""
    with item.part.reading() as (path, rows):
        for texts in read_wording(path, rows[side]):
            words = words_of(texts)
            runs, starts, _ = grams(words, RUN)
            yield words, runs, starts


# Search for quotes: runs of 300 or more characters that occur in a held-out document and in a training document.
#
# All of them are found, without comparing pairs of documents, in 3 steps:
# 1. Hash seeds of 145 characters: in held-out text one at every 12th character, in training text one at every 13th.
#    12 and 13 have no common divisor, so any shared run of 300 characters (12 * 13 + 145 - 1) has a seed both hash.
# 2. Around held-out seeds that also occur in training text, hash every window of 300 characters, and look for these in
#    the training documents that have such seeds. Hashes have 64 bits: 10^6 of them meet a wrong one among 10^9
#    characters with a probability of 5 * 10^-5.
# 3. Merge the held-out windows that were found: their unions are the quotes.
#
# Only held-out seeds are kept in memory (8 bytes per 12 characters). Training text is streamed part by part, once; only
# documents that share a seed are read again.
#
# Line ends, tabs, control characters and no-break spaces equal a space, so that a quote may be wrapped elsewhere.
# Block-quote markers of Markdown ("> " at the beginning of a line) are neither compared nor counted. Each message of a
# chat is a text of its own.

QUOTE = 300  # characters, the shortest quote
_STEPS = {"val": 12, "train": 13}
_SEED = QUOTE - _STEPS["val"] * _STEPS["train"] + 1
# Separators between texts: lone surrogates, which no UTF-8 text has. They differ by side, so no match spans two texts.
_BETWEEN = {"val": "\ud800", "train": "\ud801"}
_MARK, _NO_BREAK_SPACE = re.compile(r"\n[ \t]*>[> \t]*"), 0xA0

Spans = dict[str, list[tuple[int, int]]]


@dataclass(frozen=True)
class Characters:
    """Normalized code points of a batch of documents.

    `joined`: the texts of all documents, with the separator `between` after each. `bounds`: start of each document in
    it, and its end. `numbers`: number of each document. `codes`: the code points that are compared. `places`: position
    of each in `joined`; block-quote markers are left out. `chats`: whether the documents are chats.
    """

    joined: str
    between: str
    bounds: np.ndarray
    numbers: np.ndarray
    codes: np.ndarray
    places: np.ndarray
    chats: bool

    def hashes(self, length: int, *, step: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return (starts, hashes) of the runs of `length` characters that start at every `step`-th character."""
        hashes = hash_runs(self.codes, length, step=step)
        return step * np.arange(len(hashes)), hashes

    def documents(self, at: np.ndarray) -> np.ndarray:
        """Return the index, in `numbers`, of the document of each index into `codes`."""
        return np.searchsorted(self.bounds, self.places[at], side="right") - 1

    def spans(self, begins: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
        """Yield (document, start byte, end byte, number of characters) of ranges of `codes`, each within one text."""
        ranges = zip(self.places[begins], self.places[ends - 1] + 1, strict=True)
        for document, (first, end) in zip(self.documents(begins), ranges, strict=True):
            before, inside = self._text(self.bounds[document], first), self._text(first, end)
            start = len(before.encode())
            yield document, start, start + len(inside.encode()), len(inside)

    def whole(self, document: int) -> str:
        """Return the text of a document."""
        return self._text(*self.bounds[document : document + 2])

    def _text(self, first: int, end: int) -> str:
        return self.joined[first:end].replace(self.between, "")


def compared(documents: Sequence[str], numbers: np.ndarray, *, between: str, chats: bool) -> Characters:
    """Normalize documents, whose texts end with `between`, as described above."""
    joined = "".join(documents)
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    kept = np.ones(len(codes), dtype=bool)
    for mark in _MARK.finditer(joined) if ">" in joined else ():
        kept[mark.start() + 1 : mark.end()] = False
    codes = np.maximum(codes[kept], ord(" "))  # tabs, line ends and the other control characters lie below the space
    codes[codes == _NO_BREAK_SPACE] = ord(" ")
    bounds = np.cumsum([0, *map(len, documents)])
    return Characters(joined, between, bounds, numbers, codes, np.flatnonzero(kept), chats)


@dataclass
class Quotes:
    """Quotes in the held-out documents of a source, and their total number of characters.

    `spans`: {key: (start, end) of each quote in bytes of the UTF-8 text}. The key of a document is its part and its
    number among the held-out rows of that part ("part-00000/7"), that of a chat its `chat_key`; the text of a chat is
    the concatenated contents of its messages.
    """

    spans: Spans = field(default_factory=dict)
    characters: int = 0


def find_quotes(engine: Engine, sources: Mapping[str, tuple[Texts, Splits]], *, scratch: Path) -> dict[str, Quotes]:
    """Return, by source, the quotes its held-out documents share with the training documents of all sources."""
    seed_file, window_file = scratch / "seeds.npy", scratch / "windows.npy"
    items = parts_to_read(sources)
    seeds = {item.name: hashes for item, hashes in engine.map(held_out_seeds, items, tick=bool)}
    wanted = distinct(seeds.values())
    np.save(seed_file, wanted)
    shared, training = np.zeros(len(wanted), dtype=bool), []
    for item, (places, documents) in engine.map(partial(seeds_in_training, wanted=seed_file), items, tick=bool):
        shared[places] = True
        if len(documents):
            training.append(replace(item, documents=documents))
    np.save(seed_file, wanted[shared])
    held_out = [item for item in items if np.isin(seeds[item.name], wanted[shared]).any()]
    found = engine.map(partial(held_out_windows, wanted=seed_file), held_out, tick=bool)
    windows = distinct(hashes for _, hashes in found)
    save_shared(windows, window_file, engine.map(partial(windows_in_training, wanted=window_file), training, tick=bool))
    total = {name: Quotes() for name in sources}
    for item, quotes in engine.map(partial(held_out_quotes, wanted=window_file), held_out, tick=bool):
        total[item.source].spans.update(quotes.spans)
        total[item.source].characters += quotes.characters
    return total


def held_out_seeds(item: PartToRead, worker: Worker) -> np.ndarray:
    """Return the distinct hashes of the seeds in held-out rows."""
    return distinct(characters.hashes(_SEED, step=_STEPS["val"])[1] for characters in _read(item, "val"))


def seeds_in_training(item: PartToRead, worker: Worker, *, wanted: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the wanted seeds found in training rows, and the numbers of the documents with one."""
    lookup, documents = Lookup(np.load(wanted)), [np.empty(0, dtype=np.int64)]
    for characters in _read(item, "train"):
        begins, hashes = characters.hashes(_SEED, step=_STEPS["train"])
        documents.append(characters.numbers[characters.documents(begins[lookup.find(hashes)])])
    return lookup.found(), np.unique(np.concatenate(documents))


def held_out_windows(item: PartToRead, worker: Worker, *, wanted: Path) -> np.ndarray:
    """Return the distinct hashes of the windows around seeds found in training text: only they may be quotes."""
    lookup, found = Lookup(np.load(wanted)), []
    for characters in _read(item, "val"):
        begins, seeds = characters.hashes(_SEED, step=_STEPS["val"])
        begins = begins[lookup.find(seeds)]
        _, hashes = characters.hashes(QUOTE)
        found += [hashes[first:last] for first, last in _union(np.maximum(0, begins + _SEED - QUOTE), begins + 1)]
    return distinct(found)


def windows_in_training(item: PartToRead, worker: Worker, *, wanted: Path) -> np.ndarray:
    """Return the indices of the wanted windows that occur in training rows."""
    lookup = Lookup(np.load(wanted))
    for characters in _read(item, "train"):
        lookup.find(characters.hashes(QUOTE)[1])
    return lookup.found()


def held_out_quotes(item: PartToRead, worker: Worker, *, wanted: Path) -> Quotes:
    """Return the quotes: merged windows that were found, as byte ranges of each document."""
    lookup, quotes = Lookup(np.load(wanted)), Quotes()
    for characters in _read(item, "val"):
        begins, hashes = characters.hashes(QUOTE)
        begins = begins[lookup.find(hashes)]
        for document, start, end, count in characters.spans(*_union(begins, begins + QUOTE).T):
            number = characters.numbers[document]
            key = chat_key(characters.whole(document)) if characters.chats else f"{item.part.name}/{number}"
            quotes.spans.setdefault(key, []).append((start, end))
            quotes.characters += count
    quotes.spans = {key: sorted({*own}) for key, own in quotes.spans.items()}
    return quotes


def _read(item: PartToRead, side: str) -> Iterator[Characters]:
    """Yield the normalized characters of a side's documents, or of `item.documents`, in batches."""
    with item.part.reading() as (path, rows):
        numbers = np.arange(len(rows[side])) if item.documents is None else item.documents
        between, done = _BETWEEN[side], 0
        for batch in read_contents(path, rows[side][numbers]):
            chats = not isinstance(batch[0], str)
            texts = ([message["content"] for message in row] if chats else [row] for row in batch)
            documents = ["".join(text + between for text in own) for own in texts]
            yield compared(documents, numbers[done : done + len(batch)], between=between, chats=chats)
            done += len(batch)


def _union(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Merge ranges, given in ascending order, that overlap or touch; return (start, end) of each, (n, 2)."""
    if not len(begins):
        return np.empty((0, 2), dtype=np.int64)
    gaps = np.flatnonzero(begins[1:] > ends[:-1])
    return np.stack([begins[np.append(0, gaps + 1)], ends[np.append(gaps, len(ends) - 1)]], axis=1)
