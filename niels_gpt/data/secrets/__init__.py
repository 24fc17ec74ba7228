"""Find and mask secrets in a text: keys, tokens, passwords, card numbers, IBANs, recovery codes, seed phrases.

They are found by their form: published formats, check digits and word lists (`tokens.py`), and names such as
`password:` in front of them (`named.py`). Every pass takes time in proportion to the text, also where
somebody has written the text to make it slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from niels_gpt.data.secrets.named import find_named
from niels_gpt.data.secrets.tokens import find_numbers, find_private_keys, find_seed_phrases, find_tokens

_FROM_DIGIT = re.compile(r"[0-9]\S*+")
_NAME_BEFORE = 100  # characters in which `password for the router:` stands


@dataclass(frozen=True)
class Secret:
    """Characters `start` to `end` of a text, which begin in this `line` (from 1)."""

    kind: str
    start: int
    end: int
    line: int


def find_secrets(text: str) -> list[Secret]:
    """Return all secrets of a text in order; those that overlap are merged."""
    lower = text.lower()
    if len(lower) != len(text):  # the small form of a few letters is two characters
        lower = "".join(small if len(small := letter.lower()) == 1 else letter for letter in text)
    digits = [word.span() for word in _FROM_DIGIT.finditer(text)]
    found = (
        *find_private_keys(text),
        *find_tokens(text, digits),
        *find_numbers(text, digits),
        *find_named(text, lower),
        *find_seed_phrases(lower),
    )
    return located(text, found) if found else []


def located(text: str, found: Iterable[tuple[int, int, str]]) -> list[Secret]:
    """Return (start, end, kind) in order with their lines, merged where they overlap."""
    secrets: list[Secret] = []
    line = counted = 0
    # A set has no order from run to run: of two kinds for the same characters the first found must win everywhere.
    for start, end, kind in sorted(dict.fromkeys(found), key=lambda s: (s[0], -s[1])):
        if secrets and start < secrets[-1].end:
            secrets[-1] = replace(secrets[-1], end=max(end, secrets[-1].end))
            continue
        line += text.count("\n", counted, start)
        counted = start
        secrets.append(Secret(kind, start, end, line + 1))
    return secrets


def mask(text: str, secrets: Sequence[Secret]) -> str:
    """Return the text with every secret replaced by its kind in brackets, which no rule takes for a secret."""
    parts, end = [], 0
    for secret in secrets:
        parts += [text[end : secret.start], f"[{secret.kind}]"]
        end = secret.end
    return "".join([*parts, text[end:]])


def outside_secrets(text: str, place: int) -> int:
    """Return the first position from `place` on where a cut separates no secret from its name."""
    for secret in find_secrets(text):
        if secret.start - _NAME_BEFORE < place < secret.end:
            place = secret.end
    return place
