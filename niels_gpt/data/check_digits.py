"""Card numbers and IBANs: their lengths, prefixes and check digits."""

from __future__ import annotations

import re
from collections.abc import Iterator

_DIGITS = re.compile("[0-9]+")
# How cards print their digits; without any gap, a number of 13 to 19.
_GROUPS = ((4, 4, 4, 4), (4, 4, 4, 4, 3), (4, 6, 5), (4, 6, 4))
_ISSUED = (
    ("4", (13, 16, 19)),  # Visa
    ("5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720", (16,)),  # Mastercard
    ("3[47]", (15,)),  # American Express
    ("6011|64[4-9]|65", (16, 19)),  # Discover
    ("3(?:0[0-5]|[689])", (14, 16)),  # Diners Club
    ("35(?:2[89]|[3-8])", (16,)),  # JCB
    ("62", (16, 17, 18, 19)),  # UnionPay
)
_IBAN_LENGTHS = {
    int(length): set(countries.split())
    for length, countries in (
        line.split(":")
        for line in (
            "15:NO",
            "16:BE",
            "18:DK FK FI FO GL NL SD",
            "19:MK SI",
            "20:AT BA EE KZ LT LU MN XK",
            "21:CH HR LI LV",
            "22:BG BH CR DE GB GE IE ME RS VA",
            "23:AE GI IL IQ OM SO TL",
            "24:AD CZ ES MD PK RO SA SE SK TN VG",
            "25:LY PT ST",
            "26:IS TR",
            "27:BI DJ FR GR IT MC MR SM",
            "28:AL AZ BY CY DO GT HU LB NI PL SV",
            "29:BR EG PS QA UA",
            "30:JO KW MU YE",
            "31:MT SC",
            "32:LC",
            "33:RU",
        )
    )
}
_LENGTH_OF = {country: length for length, countries in _IBAN_LENGTHS.items() for country in countries}


def card_spans(run: str) -> Iterator[tuple[int, int]]:
    """(start, end) of the card numbers in a run of digits with single gaps; an expiry date may stand behind them."""
    groups = [match.span() for match in _DIGITS.finditer(run)]
    end = 0
    for first, (start, _) in enumerate(groups):
        if start < end:
            continue
        for count in (1, *map(len, _GROUPS)):
            chosen = groups[first : first + count]
            sizes = tuple(b - a for a, b in chosen)
            if (count == 1 or sizes in _GROUPS) and is_card("".join(run[a:b] for a, b in chosen)):
                end = chosen[-1][1]
                yield start, end
                break


def is_card(digits: str) -> bool:
    known = any(len(digits) in lengths and re.match(prefix, digits) for prefix, lengths in _ISSUED)
    return known and _luhn(digits)


def _luhn(digits: str) -> bool:
    values = list(map(int, reversed(digits)))
    return (sum(values[::2]) + sum(sum(divmod(2 * value, 10)) for value in values[1::2])) % 10 == 0


def iban_length(text: str) -> int:
    """How many characters at the head of a text, gaps included, are an IBAN; 0 where there is none."""
    length, letters = _LENGTH_OF.get(text[:2].upper(), 0), []
    for place, character in enumerate(text, start=1):
        if character.isalnum():
            letters.append(character.upper())
        if length and len(letters) == length:
            turned = "".join(letters[4:] + letters[:4])
            return place if turned.isascii() and int("".join(str(int(c, 36)) for c in turned)) % 97 == 1 else 0
    return 0
