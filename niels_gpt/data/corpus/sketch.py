"""FracMinHash sketches of documents, for finding duplicates without comparing texts.

A text is reduced to its words, ignoring case and punctuation, and these to shingles of 3 consecutive words. A sketch
keeps the shingle hashes that are divisible by 2^scale. The choice depends on the hash alone, so texts with a common
shingle keep or drop it alike, and the overlap of two sketches estimates how much of one text the other contains, even
if the other is much longer. Short texts keep all hashes (scale 0), longer ones 1/2, 1/4 or 1/8 of them. Sketches of
different scales are compared at the coarser scale, whose hashes the finer sketch has, too.

Hashes depend only on code points and fixed constants: they are equal on every machine and in every process.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np

from niels_gpt.rng import mixed

SHINGLE = 3  # words; with 10% of the words changed, 0.9^3 = 0.73 of the shingles stay the same
_FULL = 64  # shingles; texts with at most this many keep all of them
_COARSEST = 3  # largest scale: 1/8 of the shingles, about 12 of a 100-word article quoted in a long text
# Texts that share less than this share a phrase only. Each common hash stands for 2^scale shingles.
_SHARED_HASHES, _SHARED_SHINGLES = 4, 8
# Scripts treated as having no spaces between words: each character counts as a word (Thai to Khmer, CJK, Hangul).
_UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x9FFF), (0xAC00, 0xD7AF), (0xF900, 0xFAFF))
_BASE, _NEXT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1342543DE82EF95)  # odd: invertible mod 2^64
_NEITHER, _IN_A_WORD, _A_WORD = 0, 1, 2


@dataclass(frozen=True)
class Words:
    """Words of a batch of texts.

    For each word: its hash, and its begin and end as character offsets in the case-folded texts joined by newlines.
    The words of text i are `before[i]` to `before[i + 1]`. `characters` is the total length of the case-folded texts.
    """

    hashes: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    before: np.ndarray
    characters: int


@dataclass(frozen=True)
class Sketches:
    """Sketches of consecutive documents as columns.

    `text` and `words` are 64-bit digests of the stripped text and of its word sequence, for finding equal texts and
    texts that differ only in case and punctuation.
    The distinct shingle hashes of document i divisible by 2^scale, ascending, are hashes[starts[i] : starts[i + 1]].
    """

    text: np.ndarray
    words: np.ndarray
    scale: np.ndarray
    starts: np.ndarray
    hashes: np.ndarray


def sketch_texts(texts: Sequence[str]) -> Sketches:
    """Return the sketches of the texts."""
    words = words_of(texts)
    shingles, _, before = grams(words, SHINGLE, short=True)
    scales, kept = [], []
    for first, last in pairwise(before.tolist()):
        own = shingles[first:last]
        scales.append(min(_COARSEST, ((max(1, len(own)) - 1) // _FULL).bit_length()))
        kept.append(np.unique(own[own & np.uint64((1 << scales[-1]) - 1) == 0]))
    wordings = (words.hashes[first:last].tobytes() for first, last in pairwise(words.before.tolist()))
    return Sketches(
        text=_digests(text.strip().encode("utf-8", "surrogatepass") for text in texts),
        words=_digests(wordings),
        scale=np.array(scales, dtype=np.uint8),
        starts=np.cumsum([0, *map(len, kept)]),
        hashes=np.concatenate(kept),
    )


def containment(a: np.ndarray, a_scale: int, b: np.ndarray, b_scale: int) -> float:
    """Estimate the share (0 to 1) of the smaller text that the other contains; 0 if they share only a phrase.

    `a` and `b` are the hashes of two sketches, ascending and distinct, with their scales.
    """
    scale = max(a_scale, b_scale)
    a, b = (hashes[hashes & np.uint64((1 << scale) - 1) == 0] for hashes in (a, b))
    shared = len(np.intersect1d(a, b, assume_unique=True))
    if shared < _SHARED_HASHES or shared << scale < _SHARED_SHINGLES:
        return 0.0
    return shared / min(len(a), len(b))


def words_of(texts: Sequence[str]) -> Words:
    """Return the words of the texts: runs of letters, digits and underscores, case-folded."""
    folded = [text.casefold() for text in texts]
    codes = np.frombuffer("\n".join(folded).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    kinds = _kinds()[np.minimum(codes, 0xFFFF)]
    if len(codes) and codes.max() > 0xFFFF:  # beyond the table: CJK from 0x20000, assorted symbols below
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


def grams(words: Words, n: int, *, short: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (hashes of all n-grams of words, index of each one's first word, number of n-grams before each text).

    No n-gram crosses two texts. With `short`, a text of 1 to n - 1 words has one n-gram, made of all its words.
    """
    count = np.diff(words.before)
    many = np.maximum(count - n + 1, ((count > 0) & short).astype(np.int64))
    before = np.append(0, np.cumsum(many))
    starts = np.arange(before[-1]) + np.repeat(words.before[:-1] - before[:-1], many)
    padded = np.append(words.hashes, np.zeros(n, dtype=np.uint64))
    # Horner's rule for the n-grams at all words at once; `starts` then selects those within one text.
    rolled = words.hashes
    few = np.flatnonzero((count > 0) & (count < n) & short)
    for size in range(1, n):
        whole = words.before[few[count[few] <= size]]  # first words of texts that are hashed by now
        kept, rolled = rolled[whole], rolled * _NEXT + padded[size : size + len(rolled)]
        rolled[whole] = kept
    return _mixed(rolled[starts]), starts, before


def hash_ranges(codes: np.ndarray, begins: np.ndarray | slice, ends: np.ndarray | slice) -> np.ndarray:
    """Return a 64-bit hash of each codes[begin:end]; equal content has equal hashes at any position."""
    # Polynomial hash c0 + c1 B + c2 B^2 ... mod 2^64 of all ranges at once: differences of prefix sums of c_i B^i,
    # divided by B^begin.
    powers, inverses = _powers(max(1 << 16, 1 << len(codes).bit_length()))  # few sizes, so that tables are reused
    sums = np.zeros(len(codes) + 1, dtype=np.uint64)
    np.cumsum(codes * powers[: len(codes)], out=sums[1:])
    return _mixed((sums[ends] - sums[begins]) * inverses[begins])


def hash_runs(codes: np.ndarray, length: int, *, step: int = 1) -> np.ndarray:
    """Return the hashes of the runs of `length` codes that start at every `step`-th one."""
    codes = codes.astype(np.uint32, copy=False)
    return hash_ranges(codes, slice(0, max(0, len(codes) - length + 1), step), slice(length, None, step))


class Lookup:
    """Set of ascending hashes: a bitmap of their high bits rejects most others without a binary search."""

    def __init__(self, hashes: np.ndarray) -> None:
        self._hashes = hashes
        self._found = np.zeros(len(hashes), dtype=bool)
        bits = min(24, (16 * len(hashes)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._table = np.zeros(1 << bits, dtype=bool)
        self._table[hashes >> self._shift] = True

    def find(self, hashes: np.ndarray) -> np.ndarray:
        """Return the indices of those `hashes` that are in the set."""
        if not len(self._hashes):
            return np.empty(0, dtype=np.int64)
        likely = np.flatnonzero(self._table[hashes >> self._shift])
        places = np.minimum(np.searchsorted(self._hashes, hashes[likely]), len(self._hashes) - 1)
        hit = self._hashes[places] == hashes[likely]
        self._found[places[hit]] = True
        return likely[hit]

    def found(self) -> np.ndarray:
        """Return the indices in the set of all hashes that `find` has met."""
        return np.flatnonzero(self._found)


def _mixed(values: np.ndarray) -> np.ndarray:
    return mixed(values.view(np.int64)).view(np.uint64)


def _digests(parts: Iterable[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(hashlib.blake2b(part, digest_size=8).digest() for part in parts), dtype="<u8")


@cache
def _kinds() -> np.ndarray:
    """Return the class of each code point below 2^16: `_NEITHER`, `_IN_A_WORD` or `_A_WORD`."""
    kinds = np.fromiter((chr(code).isalnum() or code == ord("_") for code in range(1 << 16)), np.uint8, count=1 << 16)
    for first, last in _UNSPACED:
        kinds[first : last + 1] *= _A_WORD
    return kinds


@lru_cache(maxsize=2)
def _powers(size: int) -> np.ndarray:
    """Return a table of B^i and B^-i mod 2^64 for i below `size`, (2, size)."""
    inverse = np.uint64(pow(int(_BASE), -1, 2**64))
    factors = np.full((2, size), [[_BASE], [inverse]], dtype=np.uint64)
    factors[:, 0] = 1
    return np.cumprod(factors, axis=1, dtype=np.uint64)
