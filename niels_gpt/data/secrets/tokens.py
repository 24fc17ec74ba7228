"""Find secrets with a form of their own: private-key blocks, tokens of providers, web tokens, passwords in URLs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from niels_gpt.data.secrets.forms import KEY, PASSWORD, PRIVATE_KEY, PROVIDERS, TOKEN
from niels_gpt.data.secrets.values import SHORTEST_KEY, Found, is_placeholder, is_random, is_strong, without_closing

# Private keys: PEM and PGP. Lines may be quoted, indented, or written as \n in one line of JSON.

_HEAD = re.compile(r"-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_FOOT = re.compile(r"-----END (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_SOFT = r"(?:\\[nrt]|[^\S\r\n]|[>|\"',#*\\])*+"
_GAP, _LINE_END = rf"(?:{_SOFT}[\r\n]++)*+{_SOFT}", rf"{_SOFT}(?:\r?\n)?+{_SOFT}"
_FIELDS = rf"(?:{_GAP}(?:Proc-Type|DEK-Info|Version|Comment|Charset|Hash):[^\n\\]{{0,200}}+)*+{_GAP}"
_LAST_LINE = r"=?[A-Za-z0-9+/]{1,15}+={0,2}"
# With its foot, whatever its lines; without one, as far as the lines are long and follow one another.
_WHOLE = re.compile(rf"{_FIELDS}(?:[A-Za-z0-9+/=]{{16,}}+{_GAP})*+(?:{_LAST_LINE}{_GAP})?+{_FOOT.pattern}")
_NARROW = re.compile(rf"(?:{_GAP}[A-Za-z0-9+/=]++(?=[^\S\r\n]*+[\r\n]))*+{_GAP}{_FOOT.pattern}")
_CUT_OFF = re.compile(
    rf"{_FIELDS}[A-Za-z0-9+/=]{{16,}}+(?:{_LINE_END}[A-Za-z0-9+/=]{{16,}}+)*+(?:{_LINE_END}{_LAST_LINE}(?![\w ]))?"
)
_LINE_BEFORE = re.compile(r"[\s>|\"',#*]*[A-Za-z0-9+/=]+[\s\"',]*")


def find_private_keys(text: str) -> Found:
    """Yield PEM, PGP and PuTTY blocks, also without a head or a foot."""
    if "PRIVATE KEY" not in text:
        return
    end = 0
    for head in _HEAD.finditer(text):
        body = next((body for form in (_WHOLE, _NARROW, _CUT_OFF) if (body := form.match(text, head.end()))), None)
        if body and _holds_key(body[0].partition("-----")[0]):
            end = body.end()
            yield head.start(), end, PRIVATE_KEY
    for foot in _FOOT.finditer(text):  # whose head stood in another document
        start = foot.start()
        while start > end:
            before = text.rfind("\n", end, start - 1) + 1 or end
            if not _LINE_BEFORE.fullmatch(text, before, start):
                break
            start = before
        if foot.end() > end and _holds_key(text[start : foot.start()]):
            yield start, foot.end(), PRIVATE_KEY


def _holds_key(body: str) -> bool:
    """In fewer characters there is no key: somebody wrote about one."""
    return len(re.sub(r"[^A-Za-z0-9+/]", "", body)) >= 32


# Tokens of providers. All of them have a digit, so that only words with one are looked at.

_REACH = 500  # characters of a word in front of its first digit, and of a URL in front of its @
_JWT = re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+")
_IN_URL = re.compile(r"://[^\s/:@\"'<>?#]{0,200}:([^\s/@\"'<>`]{1,200})@(?=[A-Za-z0-9\[_-])")
_HASH = re.compile(r"\$(?:1|2[abxy]|5|6|7|y|gy|apr1|argon2(?:id|i|d)|pbkdf2[\w-]*)\$[A-Za-z0-9./+=,$-]{20,300}")
_PGPASS = re.compile(r"[\w.*-]{1,100}:(?:[0-9]{2,5}|\*):[\w*-]{1,60}:[\w*-]{1,60}:(\S{4,100})")
_AFTER_EMAIL = re.compile(
    r"@(?:[\w-]{1,63}\.){1,6}[A-Za-z]{2,12}(?:[ \t]{0,2}[/|;,][ \t]{0,2}|:[ \t]?)(?!//)([^\s/]{8,64})(?!\S)"
)
_WIFI = re.compile(r"WIFI:(?=[^\s]{0,100}T:)(?:[^;\s]{0,80};){0,4}?P:((?:\\.|[^;\\\s]){1,100});")
# A prefix and a random body: the form that most providers have chosen.
_PREFIXED = re.compile(
    r"(?<![A-Za-z0-9_/.=-])[a-z][a-z0-9]{1,11}(?:[_-][a-z0-9]{2,8}){0,2}_([A-Za-z0-9]{24,255})(?![\w./-])"
)


# Where a token may begin: 16 characters and a digit are to come. The slash and the colon are of few.
_TO_COME = (
    r"(?:(?=[A-Za-z0-9_.~$=+-]{16})(?=[A-Za-z_.~$=+-]{0,60}[0-9])"
    r"|(?=hooks\.|discord(?:app)?\.com/api|[01]//?[0-9]|[0-9]{8,10}:AA|[a-z0-9-]{1,60}\.webhook))"
)


@cache
def _providers() -> re.Pattern[str]:
    forms = "|".join(form for _, form in PROVIDERS)
    return re.compile(f"(?<![A-Za-z0-9]){_TO_COME}(?:{forms})(?![A-Za-z0-9])")


def find_tokens(text: str, digits: Sequence[tuple[int, int]]) -> Found:
    """Yield tokens by their published formats, web tokens, hashes of passwords, and passwords in URLs.

    `digits` are (start, end) from the first digit of each word to its end.
    """
    providers = _providers()
    for first, end in digits:
        if end - first < SHORTEST_KEY and text[first - 1 : first] in (" ", "\n", ""):
            continue
        reach = max(0, first - _REACH)
        place = max(text.rfind(" ", reach, first), text.rfind("\n", reach, first), reach - 1) + 1
        if end - place < SHORTEST_KEY:
            continue
        word = text[place:end]
        for key in providers.finditer(word):
            yield place + key.start(), place + key.end(), KEY
        if "_" in word and (prefixed := _PREFIXED.search(word)) and is_random(prefixed[1]):
            yield place + prefixed.start(), place + prefixed.end(), KEY
        if word.count(":") >= 4 and (line := _PGPASS.fullmatch(word)) and not is_placeholder(line[1]):
            yield place + line.start(1), place + line.end(1), PASSWORD
        for hashed in _HASH.finditer(word) if "$" in word else ():
            yield place + hashed.start(), place + hashed.end(), PASSWORD
    for token in _JWT.finditer(text) if "eyJ" in text else ():
        yield *token.span(), TOKEN
    for wifi in _WIFI.finditer(text) if "WIFI:" in text else ():
        if not is_placeholder(wifi[1]):
            yield *wifi.span(1), PASSWORD
    yield from _logins(text)


def _logins(text: str) -> Found:
    """Yield passwords at an @: in a URL, and behind an e-mail address."""
    for at in (sign.start() for sign in re.finditer("@", text)):
        if (url := _IN_URL.search(text, max(0, at - _REACH), at + 2)) and not is_placeholder(url[1]):
            yield *url.span(1), PASSWORD
        if (login := _AFTER_EMAIL.match(text, at)) and is_strong(login[1], 3) and not is_placeholder(login[1]):
            yield login.start(1), login.start(1) + len(without_closing(login[1], "")), PASSWORD
