"""Sketches of documents: a few hashes of each, by which duplicates are found without comparing texts.

A text is taken for its words, case and punctuation aside, and the words for their shingles (three in a row). A sketch
keeps the hashes of some of these: those that are divisible by 2^k, the same ones in whichever text they stand
("FracMinHash"). So what two sketches share says how much of one text stands in the other, also where the other is much
longer. Short texts keep all, longer ones every second, fourth, ... hash: two sketches of unlike scale are compared at
the coarser one, whose hashes the finer one has, too.

Everything is computed from code points with fixed numbers: equal on every machine and in every process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from niels_gpt.rng import mixed

SHINGLE = 3  # words: with 10% of all words changed, 0.73 of the shingles are still the same
_FULL = 64  # shingles, up to which all are kept
_COARSEST = 3  # the longest texts keep every 2^3rd: of an article of 100 words that is quoted in one, about 12
# Two texts with fewer in common share a phrase: hashes, and shingles, for which at a coarser scale fewer hashes stand.
_SHARED_HASHES, _SHARED_SHINGLES = 4, 8
# Scripts that do not part their words: a character is a word (Thai to Khmer, CJK, Hangul).
_UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x9FFF), (0xAC00, 0xD7AF), (0xF900, 0xFAFF))
_BASE, _NEXT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1342543DE82EF95)  # odd, so that they can be divided by
_NEITHER, _IN_A_WORD, _A_WORD = 0, 1, 2


@dataclass(frozen=True)
class Words:
    """The words of some texts: the hash of each, where it begins and ends among the characters of all texts together,
    and how many words stand before each text."""

    hashes: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    before: np.ndarray
    characters: int


@dataclass(frozen=True)
class Sketch:
    """Of one document. `text` and `words` tell equal texts, and texts of equal words; `hashes` are of shingles,
    ascending, of those divisible by 2^scale."""

    text: int
    words: int
    scale: int
    hashes: np.ndarray


def sketch_texts(texts: Sequence[str]) -> list[Sketch]:
    words = words_of(texts)
    shingles, before = grams(words, SHINGLE, short=True)
    found = []
    for number, text in enumerate(texts):
        own = shingles[before[number] : before[number + 1]]
        scale = min(_COARSEST, ((max(1, len(own)) - 1) // _FULL).bit_length())
        kept = np.unique(own[own & np.uint64((1 << scale) - 1) == 0])
        said = words.hashes[words.before[number] : words.before[number + 1]]
        found.append(
            Sketch(_digest(text.strip().encode("utf-8", "surrogatepass")), _digest(said.tobytes()), scale, kept)
        )
    return found


def containment(a: np.ndarray, a_scale: int, b: np.ndarray, b_scale: int) -> float:
    """How much of the smaller of two texts stands in the other, by the hashes of both; 0 where that is no more than a
    phrase."""
    scale = max(a_scale, b_scale)
    a, b = (hashes[hashes & np.uint64((1 << scale) - 1) == 0] for hashes in (a, b))
    shared = len(np.intersect1d(a, b, assume_unique=True))
    if shared < _SHARED_HASHES or shared << scale < _SHARED_SHINGLES:
        return 0.0
    return shared / min(len(a), len(b))


def words_of(texts: Sequence[str]) -> Words:
    """Words are runs of letters, digits and underscores; case does not count."""
    folded = [text.casefold() for text in texts]
    codes = np.frombuffer("\n".join(folded).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    kinds = _kinds()[np.minimum(codes, 0xFFFF)]
    if len(codes) and codes.max() > 0xFFFF:  # beyond the table: CJK, and before that all sorts of signs
        kinds[codes > 0xFFFF] = _IN_A_WORD
        kinds[codes >= 0x20000] = _A_WORD
    begins = kinds == _A_WORD
    begins[1:] |= (kinds[1:] == _IN_A_WORD) & (kinds[:-1] != _IN_A_WORD)
    if len(codes):
        begins[0] = kinds[0] != _NEITHER
    inside = np.flatnonzero(kinds)
    first = np.flatnonzero(begins[inside])
    last = np.append(first, len(inside))[1:] - 1
    hashes = hash_ranges(codes[inside], first, last + 1)
    ends_of_texts = np.cumsum([0, *(len(text) + 1 for text in folded)])
    where = inside[first]
    before = np.searchsorted(where, ends_of_texts)
    return Words(hashes, where, inside[last] + 1, before, characters=sum(map(len, folded)))


def grams(words: Words, n: int, *, short: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(hashes of all runs of n words within a text, how many stand before each text). `short`: a text of fewer words
    has one, of all of them."""
    count = np.diff(words.before)
    many = np.maximum(count - n + 1, ((count > 0) & short).astype(np.int64))
    before = np.append(0, np.cumsum(many))
    starts = np.arange(before[-1]) + np.repeat(words.before[:-1] - before[:-1], many)
    padded = np.append(words.hashes, np.zeros(n, dtype=np.uint64))
    rolled = padded[: len(words.hashes)].copy()
    for step in range(1, n):
        rolled = rolled * _NEXT + padded[step : step + len(words.hashes)]
    found = rolled[starts]
    for text in np.flatnonzero((count > 0) & (count < n)) if short else ():
        value = np.uint64(0)
        for word in words.hashes[words.before[text] : words.before[text + 1]]:
            value = np.uint64((int(value) * int(_NEXT) + int(word)) % 2**64)
        found[before[text]] = value
    return _mixed(found), before


def hash_ranges(codes: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each codes[begin:end]: equal characters have equal hashes, wherever they stand."""
    # Of c0 c1 c2: c0 + c1 B + c2 B^2, from running sums of c B^i over all codes, divided by B^i.
    powers, inverses = _powers(len(codes))
    sums = np.zeros(len(codes) + 1, dtype=np.uint64)
    np.cumsum(codes * powers[: len(codes)], out=sums[1:])
    return _mixed((sums[ends] - sums[begins]) * inverses[begins])


def _mixed(values: np.ndarray) -> np.ndarray:
    return mixed(values.view(np.int64)).view(np.uint64)


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


@lru_cache(maxsize=1)
def _kinds() -> np.ndarray:
    """What a character of the first 2^16 is."""
    kinds = np.fromiter((chr(code).isalnum() or code == ord("_") for code in range(1 << 16)), np.uint8, count=1 << 16)
    for first, last in _UNSPACED:
        kinds[first : last + 1] *= _A_WORD
    return kinds


_tables: list[np.ndarray] = []


def _powers(n: int) -> tuple[np.ndarray, np.ndarray]:
    """B^i and B^-i for i up to n at least, kept for the next time."""
    if not _tables or len(_tables[0]) < n + 1:
        inverse = np.uint64(pow(int(_BASE), -1, 2**64))
        size = max(1 << 16, 1 << n.bit_length())
        _tables[:] = [_running(base, size) for base in (_BASE, inverse)]
    return _tables[0], _tables[1]


def _running(base: np.uint64, size: int) -> np.ndarray:
    values = np.full(size, base, dtype=np.uint64)
    values[0] = 1
    return np.cumprod(values, dtype=np.uint64)
