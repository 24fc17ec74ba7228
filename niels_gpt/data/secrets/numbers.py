"""Find numbers with check digits: card numbers and IBANs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from niels_gpt.data.secrets.forms import CARD, IBAN
from niels_gpt.data.secrets.values import Found

# Runs of digits with at most one gap between two of them (also a typesetter's).
_GAP_IN_NUMBER = "[ \u00a0\u2007\u2009\u202f\u2010\u2011\u2013.-]?+"
_DIGITS = re.compile("[0-9]+")
_RUN = re.compile(rf"[0-9](?:{_GAP_IN_NUMBER}[0-9]){{12,}}+")
_IBAN = re.compile(rf"(?<![A-Za-z0-9_])[A-Za-z]{{2}}[0-9]{{2}}(?:{_GAP_IN_NUMBER}[A-Za-z0-9]){{11,30}}")
_BEFORE_A_CARD = re.compile(r"[^\W]|[./]")  # part of a name, of a path, of another number
# How cards print their digits; without any gap, a number of 13 to 19.
_CARD_GROUPS = ((4, 4, 4, 4), (4, 4, 4, 4, 3), (4, 6, 5), (4, 6, 4))
_CARD_ISSUERS = (
    ("4", (13, 16, 19)),  # Visa
    ("5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720", (16,)),  # Mastercard
    ("3[47]", (15,)),  # American Express
    ("6011|64[4-9]|65", (16, 19)),  # Discover
    ("3(?:0[0-5]|[689])", (14, 16)),  # Diners Club
    ("35(?:2[89]|[3-8])", (16,)),  # JCB
    ("62", (16, 17, 18, 19)),  # UnionPay
)


def find_numbers(text: str, digits: Sequence[tuple[int, int]]) -> Found:
    """Yield card numbers and IBANs. `digits` are (start, end) from the first digit of each word to its end."""
    done = 0
    for first, end in digits:
        iban = _IBAN.match(text, max(0, first - 2)) if text[first - 1 : first].isalpha() else None
        if iban and (length := _iban_end(iban[0], text[iban.end() : iban.end() + 1])):
            yield iban.start(), iban.start() + length, IBAN
        if first < done:
            continue
        if end - first > 12:
            done = first
            while run := _RUN.search(text, done, end + 30):
                done = run.end()
                yield from _cards_in(text, *run.span())
        elif text[end + 1 : end + 2].isdigit() and (alone := _RUN.match(text, first)):
            done = alone.end()
            yield from _cards_in(text, *alone.span())


def _cards_in(text: str, first: int, last: int) -> Found:
    for start, end in _cards(text[first:last]):
        inside = start == 0 and _BEFORE_A_CARD.match(text[first - 1 : first] if first else "")
        if not inside and not (first + end == last and re.match(r"\w", text[last : last + 1])):
            yield first + start, first + end, CARD


def _cards(run: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the card numbers in a run of digits; an expiry date may stand behind them."""
    groups = [match.span() for match in _DIGITS.finditer(run)]
    end = 0
    for first, (start, _) in enumerate(groups):
        if start < end:
            continue
        for count in (1, *map(len, _CARD_GROUPS)):
            chosen = groups[first : first + count]
            sizes = tuple(b - a for a, b in chosen)
            if (count == 1 or sizes in _CARD_GROUPS) and is_card("".join(run[a:b] for a, b in chosen)):
                end = chosen[-1][1]
                yield start, end
                break


def is_card(digits: str) -> bool:
    """Check the issuer's prefix, the length and the check digit."""
    if not any(len(digits) in lengths and re.match(prefix, digits) for prefix, lengths in _CARD_ISSUERS):
        return False
    from stdnum import luhn

    return bool(luhn.is_valid(digits))


def _iban_end(text: str, after: str) -> int:
    """Return how many characters at the head of a text, gaps included, are an IBAN; 0 where there is none."""
    places = [place for place, character in enumerate(text, start=1) if character.isalnum()]
    length = _iban_length(text[:2].upper())
    if not 0 < length <= len(places) or (text[places[length - 1] :] + after)[:1].isalnum():
        return 0
    from stdnum import iban

    end = places[length - 1]
    return end if iban.is_valid(re.sub("[^A-Za-z0-9]", "", text[:end]), check_country=False) else 0


@cache
def _iban_length(country: str) -> int:
    from stdnum import numdb

    known = numdb.get("iban").info(country)[0][1]
    return 4 + sum(map(int, re.findall("[0-9]+", known["bban"]))) if "bban" in known else 0
