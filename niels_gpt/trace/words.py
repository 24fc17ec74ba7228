"""Word boundaries in UTF-8 bytes, the same in an index and in a text to trace.

A word is a run of letters and digits. A character of a script without spaces (Chinese, Japanese, Korean) or an emoji
begins a word of its own.
"""

from __future__ import annotations

import numpy as np

# Ranges of first bytes of what may follow a word: ASCII without letters and digits, the symbols of Latin-1 (C2),
# general punctuation and symbols (E2), and characters that begin a word of their own (E3 on: U+3000 and above).
ENDS = ((0x00, 0x30), (0x3A, 0x41), (0x5B, 0x61), (0x7B, 0x80), (0xC2, 0xC3), (0xE2, 0xF8))
_ALONE = 0xE3
_SYMBOLS = {0xC2: 1, 0xE2: 2}  # first byte: how many bytes follow it

_GAP = np.zeros(256, dtype=bool)
for _first, _last in ENDS:
    _GAP[_first:_last] = True
_GAP[_ALONE:] = False


def word_starts(text: np.ndarray) -> np.ndarray:
    """Return a mask of the bytes (uint8) that begin a word."""
    return _starts(text, _gaps(text))


def word_bounds(text: bytes) -> np.ndarray:
    """Return the first byte of each word and the byte after its last, as rows of an (n, 2) array."""
    data = np.frombuffer(text, dtype=np.uint8)
    gaps = _gaps(data)
    starts, ends = _starts(data, gaps), ~gaps
    ends[:-1] &= gaps[1:] | starts[1:]
    return np.stack([np.flatnonzero(starts), np.flatnonzero(ends) + 1], axis=1)


def _gaps(text: np.ndarray) -> np.ndarray:
    gaps = _GAP[text]
    for first, following in _SYMBOLS.items():
        symbols = np.flatnonzero(text == first)
        for byte in range(1, following + 1):
            gaps[symbols + byte] = True
    return gaps


def _starts(text: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    starts = ~gaps
    starts[1:] &= gaps[:-1] | (text[1:] >= _ALONE)
    return starts
