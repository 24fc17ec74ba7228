"""Find seed phrases: 12 or more words in a row of one BIP-39 word list, also numbered, or a line each."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import takewhile

from niels_gpt.data.secrets.forms import SEED
from niels_gpt.data.secrets.values import Found

_LANGUAGES = ("english", "french", "spanish", "italian", "portuguese")  # German and Dutch have no list
_FEWEST = 12
# A phrase of 12 words is 47 characters at the least and 75 in the mean: it is met within 44 from its head, and words
# are left for a quick look at three of them.
_STRIDE = 44
_LETTER, _GAP = "[a-zß-ÿ]", "[^a-zß-ÿ]{1,10}+"
_THREE = re.compile(f"{_LETTER}{{0,12}}+{_GAP}" + _GAP.join([f"({_LETTER}{{3,9}}+)"] * 3))
_WORD = re.compile(f"{_LETTER}+")
# An end of a sentence, and what closes a bracket, has no number with it.
_BETWEEN = re.compile(r"[^.!?()\[\]{}\"'`«»“”]{1,10}|.{0,6}\d.{0,6}", re.DOTALL)
_NEAR, _FAR = 160, 700  # characters that 12 words may have, with numbers between them, and 24


def find_seed_phrases(lower: str) -> Found:
    """Yield runs of 12 or more words of one list in a text in lower case."""
    done, match = 0, _THREE.match
    every = _every_word() if len(lower) > 46 else frozenset()
    for place in range(0, len(lower) - 12, _STRIDE):
        three = match(lower, place)
        if three is None or not every.issuperset(three.groups()) or place < done:
            continue
        middle = three.start(1)
        ahead = (word[0] in every for word in _WORD.finditer(lower, middle, middle + _NEAR))
        behind = (word in every for word in reversed(_WORD.findall(lower, max(done, middle - _NEAR), middle)))
        if _count(ahead) + _count(behind) < _FEWEST:
            continue
        first = max(done, middle - _NEAR)
        for listed in _lists():
            for run in _runs(lower, first, middle + _FAR, listed):
                done = max(done, run[-1].end())
                if 4 * len({word[0] for word in run}) >= 3 * len(run):  # in prose more of them are repeated
                    yield run[0].start(), run[-1].end(), SEED


def _count(listed: Iterable[bool]) -> int:
    return sum(1 for _ in takewhile(bool, listed))


def _runs(lower: str, start: int, end: int, listed: frozenset[str]) -> list[list[re.Match[str]]]:
    """Return runs of 12 or more listed words between two positions."""
    runs: list[list[re.Match[str]]] = [[]]
    for word in _WORD.finditer(lower, start, end):
        if word[0] not in listed:
            runs.append([])
            continue
        if runs[-1] and not _BETWEEN.fullmatch(lower, runs[-1][-1].end(), word.start()):
            runs.append([])
        runs[-1].append(word)
    return [run for run in runs if len(run) >= _FEWEST]


@cache
def _lists() -> tuple[frozenset[str], ...]:
    from mnemonic import Mnemonic

    return tuple(frozenset(unicodedata.normalize("NFC", w) for w in Mnemonic(name).wordlist) for name in _LANGUAGES)


@cache
def _every_word() -> frozenset[str]:
    return frozenset().union(*_lists())
