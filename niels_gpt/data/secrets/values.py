"""Judge the word that stands where a secret would: random, letters and digits, or a placeholder; and find its end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

Found = Iterator[tuple[int, int, str]]  # start, end, kind

SHORTEST_KEY = 16  # characters of a token that needs no name, or little of one
_PLACEHOLDER = re.compile(
    r"(?i)[\[…]|<[^<>]*>|\$?\{|\$\(|(?-i:\$[A-Z_][A-Z0-9_]*$)|\$\w*(?:pass|pw|token|secret|key)\w*$|%\w+%"
    r"|(?:https?:)?//|www\.|!\[|\(+\w|[*_x.•●·-]+$"
    r"|(?:your|enter|insert|some)[ _-]|(?-i:[A-Z_]*(?:PASS|TOKEN|KEY|SECRET|PW)[A-Z_]*$)"
    r"|(?:~|\.{0,2})/(?:[\w.-]+/)*[\w-]*[a-z_-]$"  # a path
    r"|[a-z_]+(?:\.[a-z_]+)*[(\[]|[a-z_]+(?:\.[a-z_]\w*)+$"  # code that asks for it
)
_PROSE = re.compile(
    "(?i)(?:passwords?|passwd|pass|pwd|passphrase|secret|token|string|text|value|here|none|null|nil|true|false|yes|required"
    "|optional|hidden|redacted|masked|removed|undefined|unset|empty|unknown|same|changed|changeme|protected|incorrect"
    "|invalid|wrong|correct|reset|forgotten|example|default|managers?|generator|policy|hash|hashed|login|email|username"
    "|user|name|admin|1password|security|strong|weak|good|random|below|above|this|that|they|with|what|when|your|their"
    r"|base(?:32|58|64)|sha-?\d{1,3}|md5|oauth\d?|utf-?8|web[23]|ipv[46]|(?:aes|rsa|wpa)-?\d{0,4}"
    r"|[\w-]+\.(?:md|txt|py|js|html?))"
)
_STRONG = ("[a-z]", "[A-Z]", "[0-9]", r"[!@#$%^&*+=~?](?=.)")
_OPEN, _CLOSED = "([{<«“\u2018„", ")]}>»”\u2019“"
_QUOTES = {'"': re.compile('"'), "`": re.compile("`"), "'": re.compile(r"(?<!\w)'")}  # no apostrophes
_NEXT_FIELD = re.compile(r"[;,](?=\s{0,2}[A-Za-z][\w. -]{0,30}=|$)")


def is_random(value: str) -> bool:
    """Tell a random string from an identifier: it changes often between digits, capitals and small letters."""
    body = max(re.split("[^A-Za-z0-9]", value), key=len)
    classes = re.sub("[A-Z]", "A", re.sub("[a-z]", "a", re.sub("[0-9]", "0", body)))
    changes = sum(a != b for a, b in pairwise(classes))
    return len(body) >= 10 and 2 <= classes.count("0") < len(body) and 5 * changes >= len(body)


def is_mixed(value: str) -> bool:
    """Check for letters and digits without a space: few words of prose have both."""
    return not re.search(r"\s", value) and bool(re.search(r"[^\W\d_]", value) and re.search(r"\d", value))


def is_strong(value: str, kinds: int) -> bool:
    """Check for 8 characters of so many kinds: small letters, capitals, digits, signs."""
    return len(value) >= 8 and sum(bool(re.search(form, value)) for form in _STRONG) >= kinds


def is_placeholder(value: str) -> bool:
    """Check for what stands in a secret's place: `<password>`, `$TOKEN`, `********`, a path, a call."""
    return not value or bool(_PLACEHOLDER.match(value))


def is_harmless(value: str) -> bool:
    """Check for placeholders, and for words that prose has behind the name of a secret."""
    bare = value.strip(".,;:!?()*_\"'`|")
    return is_placeholder(value) or is_placeholder(bare) or bool(_PROSE.fullmatch(bare))


def without_closing(value: str, before: str) -> str:
    """Cut a value at the first quote or bracket that closes what was opened before it, and at its last comma.

    `before` is the line up to the value. A bracket inside a password is part of it; one at its end that the password
    does not open itself is not.
    """
    for quote, form in _QUOTES.items():
        if len(form.findall(before)) % 2:
            value = value.partition(quote)[0]
    value = value.removesuffix("\\") if value != "\\" else value
    depth = 0
    for place, character in enumerate(value):
        if character in _OPEN and character != "“":
            depth += 1
        elif character in _CLOSED:
            depth -= 1
            if depth < 0 and not value[place + 1 : place + 2].isalnum():
                value = value[:place]
                break
    return value.rstrip("\"'`,;|")


def first_field(value: str) -> str:
    """Cut `x;Encrypt=true` and `x,user=y` behind the x."""
    return _NEXT_FIELD.split(value, maxsplit=1)[0]
