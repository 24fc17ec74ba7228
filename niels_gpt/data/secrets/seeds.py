"""Find seed phrases: 12 or more words in a row of one BIP-39 word list, also numbered, or a line each."""

from __future__ import annotations

import re
import unicodedata
from functools import cache

from niels_gpt.data.secrets.forms import SEED
from niels_gpt.data.secrets.values import Found

_LANGUAGES = ("english", "french", "spanish", "italian", "portuguese")  # German and Dutch have no list
_FEWEST = 12
# A phrase of 12 words is 47 characters at the least and 75 in the mean: it is met within 32 from its head, and words
# are left for a quick look at four of them.
_STRIDE = 32
_LETTER, _GAP = "[a-zß-ÿ]", "[^a-zß-ÿ]{1,10}+"
_FOUR = re.compile(f"{_LETTER}{{0,12}}+{_GAP}" + _GAP.join([f"({_LETTER}{{3,9}}+)"] * 4))
_WORD = re.compile(f"{_LETTER}+")
_AROUND = 120, 700  # characters in front of four such words and behind them that a phrase may have


def find_seed_phrases(lower: str) -> Found:
    """Yield runs of 12 or more words of one list in a text in lower case."""
    done = 0
    for place in range(0, len(lower) - 46, _STRIDE):
        four = _FOUR.match(lower, place) if place >= done else None
        if four is None or not _every_word().issuperset(four.groups()):
            continue
        words = list(_WORD.finditer(lower, max(done, four.start() - _AROUND[0]), four.end() + _AROUND[1]))
        for listed in _lists():
            for start, end in _runs(lower, words, listed):
                done = max(done, end)
                yield start, end, SEED


def _runs(lower: str, words: list[re.Match[str]], listed: frozenset[str]) -> list[tuple[int, int]]:
    """Return (start, end) of the longest runs of listed words with short gaps of no letters between them."""
    runs: list[list[re.Match[str]]] = [[]]
    for word in words:
        if word[0] not in listed:
            runs.append([])
            continue
        if runs[-1] and word.start() - runs[-1][-1].end() > 10:
            runs.append([])
        runs[-1].append(word)
    return [
        (run[0].start(), run[-1].end()) for run in runs if len({word[0] for word in run}) >= _FEWEST - 3 <= len(run) - 3
    ]


@cache
def _lists() -> tuple[frozenset[str], ...]:
    from mnemonic import Mnemonic

    return tuple(frozenset(unicodedata.normalize("NFC", w) for w in Mnemonic(name).wordlist) for name in _LANGUAGES)


@cache
def _every_word() -> frozenset[str]:
    return frozenset().union(*_lists())
