"""Secrets in a text: keys, private-key blocks, passwords, card numbers and IBANs, found by their form and check digits.

What has no form of its own (a name, an address, a password in the middle of a sentence) is not found. A text is looked
at in a few fast passes: words that are long enough to be a key, digits, and lines that speak of a password. All
patterns take time in proportion to the text, also where somebody has written the text to make them slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from niels_gpt.data.check_digits import card_spans, iban_length

# What is put in a secret's place is its kind in brackets, which is no secret by any of the rules.
KEY, PRIVATE_KEY, TOKEN, PASSWORD, CARD, IBAN = "api key", "private key", "token", "password", "card number", "iban"


@dataclass(frozen=True)
class Secret:
    """Characters `start` to `end` of a text, which begin in this `line` (from 1)."""

    kind: str
    start: int
    end: int
    line: int


def find_secrets(text: str) -> list[Secret]:
    """In order, none within another."""
    found = sorted({*_blocks(text), *_keys(text), *_numbers(text), *_passwords(text)}, key=lambda s: (s[0], -s[1]))
    secrets: list[Secret] = []
    line = counted = 0
    for start, end, kind in found:
        if secrets and start < secrets[-1].end:  # what overlaps is one
            secrets[-1] = replace(secrets[-1], end=max(end, secrets[-1].end))
            continue
        line += text.count("\n", counted, start)
        counted = start
        secrets.append(Secret(kind, start, end, line + 1))
    return secrets


def mask(text: str, secrets: Sequence[Secret]) -> str:
    """The text with the name of its kind in the place of each secret."""
    parts, end = [], 0
    for secret in secrets:
        parts += [text[end : secret.start], f"[{secret.kind}]"]
        end = secret.end
    return "".join([*parts, text[end:]])


def outside_secrets(text: str, place: int) -> int:
    """Where a text may be cut, at this place or behind it: half a secret, or one without its name, has no form."""
    for secret in find_secrets(text):
        if secret.start - _NAME_BEFORE < place < secret.end:
            place = secret.end
    return place


_NAME_BEFORE = 100  # characters in which `password for the router:` stands
_Found = Iterator[tuple[int, int, str]]  # start, end, kind


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


def _blocks(text: str) -> _Found:
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


# Keys that services give out: a prefix, and so many characters. Of words long enough, each looked at once.

_SHORTEST_KEY = 15  # xoxb- and 10 characters
_KEYS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"  # AWS
    r"|gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255}"
    r"|gl(?:pat|rt|dt|cbt|ptt|soat)-[A-Za-z0-9_-]{20,64}"
    r"|xox[abceoprs]-[A-Za-z0-9-]{10,255}|xapp-[0-9]-[A-Za-z0-9-]{10,255}"  # Slack
    r"|[rs]k_(?:live|test)_[A-Za-z0-9]{10,255}|whsec_[A-Za-z0-9+/=]{24,88}"  # Stripe
    r"|AIza[A-Za-z0-9_-]{35}|GOCSPX-[A-Za-z0-9_-]{28}|ya29\.[A-Za-z0-9_-]{20,1024}"  # Google
    r"|sk-(?=[A-Za-z_-]{0,250}[0-9])[A-Za-z0-9_-]{20,250}"  # OpenAI, Anthropic
    r"|gsk_[A-Za-z0-9]{40,64}|xai-[A-Za-z0-9]{40,100}|hf_[A-Za-z0-9]{30,64}|r8_[A-Za-z0-9]{30,64}"
    r"|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,400}|dckr_pat_[A-Za-z0-9_-]{20,64}"
    r"|SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}|key-[0-9a-f]{32}|SK[0-9a-f]{32}"  # SendGrid, Mailgun, Twilio
    r"|[0-9]{8,10}:AA[A-Za-z0-9_-]{33}|[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,38}"  # bots
    r"|sq0[a-z]{3}-[A-Za-z0-9_-]{22,43}|EAAA[A-Za-z0-9_-]{60}|do[opr]_v1_[0-9a-f]{64}|shp[a-z]{2}_[0-9a-fA-F]{32}"
    r"|lin_api_[A-Za-z0-9]{40}|(?:secret|ntn)_[A-Za-z0-9]{40,50}|dp\.[a-z]{2,4}\.[A-Za-z0-9]{40,44}"
    r"|(?:AccountKey|SharedAccessKey)=[A-Za-z0-9+/]{40,90}={0,2}"  # Azure
    r"|AGE-SECRET-KEY-1[A-Z0-9]{58}"
    r")(?![A-Za-z0-9])"
    r"|(?:hooks\.slack\.com/(?:services|workflows)|discord(?:app)?\.com/api/webhooks)/[A-Za-z0-9/_-]{20,255}"
)
_JWT = re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+")
_IN_URL = re.compile(r"://[^\s/:@\"'<>?#]{0,200}:([^\s/@\"'<>`]{1,200})@(?=[A-Za-z0-9\[_-])")


_LONG_WORDS = re.compile(rf"(?:\S{{1,{_SHORTEST_KEY - 1}}}+\s++|\s++)*+(?:(\S{{{_SHORTEST_KEY},}}+)|\S*+\Z)")


def _keys(text: str) -> _Found:
    for match in _LONG_WORDS.finditer(text):
        word, place = match[1] or "", match.start(1)
        for key in _KEYS.finditer(word):
            yield place + key.start(), place + key.end(), KEY
        for token in _JWT.finditer(word) if "eyJ" in word else ():
            yield place + token.start(), place + token.end(), TOKEN
    for url in _IN_URL.finditer(text):  # of any length: ftp://me:pw@nas is shorter than a key
        if not _is_placeholder(url[1]):
            yield url.start(1), url.end(1), PASSWORD


# Numbers with check digits: runs of digits with a gap at most between two of them (also a typesetter's).

_GAP_IN_NUMBER = "[ \u00a0\u2007\u2009\u202f\u2010\u2011\u2013-]?+"
_RUN = re.compile(rf"[0-9](?:{_GAP_IN_NUMBER}[0-9]){{12,}}+")
_IBAN = re.compile(
    rf"[0-9](?<=[A-Za-z]{{2}}[0-9])(?<![A-Za-z0-9_][A-Za-z]{{2}}[0-9])[0-9](?:{_GAP_IN_NUMBER}[A-Za-z0-9]){{11,30}}"
)
_BEFORE_A_CARD = re.compile(r"[^\W]|[./]")  # part of a name, of a path, of another number


def _numbers(text: str) -> _Found:
    for match in _RUN.finditer(text):
        first, last = match.span()
        for start, end in card_spans(match[0]):
            inside = start == 0 and _BEFORE_A_CARD.match(text[first - 1 : first] if first else "")
            if not inside and not (first + end == last and re.match(r"\w", text[last : last + 1])):
                yield first + start, first + end, CARD
    for match in _IBAN.finditer(text):
        start = match.start() - 2
        length = iban_length(text[start : match.end()])
        if length and not text[start + length : start + length + 1].isalnum():
            yield start, start + length, IBAN


# Lines such as `password: x`, DB_PASSWORD=x, "token": "x". Behind a word such as token nearly all is prose, so that the
# value must look like one: letters and digits. Behind `password:` a word that is all the line has is one, too.

_ANCHORS = (
    *("pass", "pw", "kennwort", "wachtwoord", "contraseña", "kode", "lösenord", "senha", "пароль"),
    *("secret", "token", "key"),
)
_PASSWORDS = (
    "passw(?:or)?[dt]|passphrase|passcode|passord|(?<=mot de )passe|pwd|kennwort|wachtwoord|contraseña"
    "|(?<=adgangs)kode|kodeord|lösenord|senha|пароль"
)
_SHORT_NAMES = r"(?<![^\W_])(?:pass|pw)"  # words of other uses, too
_KEY_NAMES = "secret(?:[ _-]?(?:access)?[ _-]?key)?|token|key"
_SAID = re.compile(
    rf"(?i)(?:(?P<password>{_PASSWORDS})|(?P<short>{_SHORT_NAMES})|{_KEY_NAMES})(?![^\W_])"
    r"(?:[ \t]*\([^()\r\n]{0,40}\)|[ \t]+(?:for|of|to|on|für|til)\b[^][()\r\n:=|\".,;!?]{0,40})?"
    r"[\"'`*_\]\\]{0,4}[^\S\r\n]{0,8}(?P<sign>::|:=|=>|[:=|\uff1a]|is\b|[-\u2013\u2014](?=\s))[\"'`*_\\]{0,3}"
    r"[^\S\r\n]{0,8}(?P<below>\r?\n[^\S\r\n]{0,8})?"
    r"(?P<value>\"[^\"\r\n]{1,200}\"|'[^'\r\n]{1,200}'|`[^`\r\n]{1,200}`|\S{1,200})(?P<rest>[^\r\n]{0,8})"
)
_SHORTEST_PASSWORD, _SHORTEST_VALUE = 4, {True: 6, False: 8}  # a word alone; letters and digits: a password, a key
_WHICH_KEY = re.compile(r"(?i)(?:api|access|auth|account|encryption|signing|master|private|secret|licen[cs]e)[ _-]?\Z")
_WORD, _IN_QUERY = re.compile(r"\S*"), re.compile(r"[^\s&)\]#]*")
_PLACEHOLDER = re.compile(
    r"(?i)[\[…]|<[^<>]*>|\$?\{|\$\(|(?-i:\$[A-Z_][A-Z0-9_]*$)|\$\w*(?:pass|pw|token|secret|key)\w*$|%\w+%"
    r"|(?:https?:)?//|www\.|!\[|\(\w|[*_x.•●·-]+$"
    r"|(?:your|enter|insert|some)[ _-]"
    r"|[a-z_]+(?:\.[a-z_]+)*[(\[]|[a-z_]+(?:\.[a-z_]\w*)+$"  # code that asks for it
)
_PROSE = re.compile(
    "(?i)(?:passwords?|passwd|pass|pwd|passphrase|secret|token|string|text|value|here|none|null|nil|true|false|yes|required"
    "|optional|hidden|redacted|masked|removed|undefined|unset|empty|unknown|same|changed|changeme|protected|incorrect"
    "|invalid|wrong|correct|reset|forgotten|example|default|managers?|generator|policy|hash|hashed|login|email|username"
    "|user|name|admin|security|strong|weak|good|random|below|above|this|that|they|with|what|when|your|their)"
)


def _passwords(text: str) -> _Found:
    lower = text.lower()
    if len(lower) != len(text):  # the small form of a few letters is two characters
        lower = "".join(small if len(small := letter.lower()) == 1 else letter for letter in text)
    for anchor in _ANCHORS:
        place = lower.find(anchor)
        while place >= 0:
            end = place + 1
            if anchor != "key" or _WHICH_KEY.search(text[max(0, place - 12) : place]):
                for found in _said_at(text, place):
                    yield found
                    end = found[1]
            place = lower.find(anchor, end)


def _said_at(text: str, place: int) -> _Found:
    """The value of the name at this place, where there is one that looks like a secret."""
    said = _SAID.match(text, place)
    if said is None:
        return
    value, start, is_password = said["value"], said.start("value"), bool(said["password"] or said["short"])
    if quoted := len(value) > 2 and value[0] in "\"'`" and value[-1] == value[0]:
        value, start = value[1:-1], start + 1
    alone = not said["rest"].strip(" \t\u00a0\"'`*_|,;)}]\\")
    named = said["password"] and not said["below"] and (quoted or (alone and said["sign"][0] in ":=\uff1a"))
    if named and not re.search(r"\s", value):
        good = len(value) >= _SHORTEST_PASSWORD
    else:
        good = len(value) >= _SHORTEST_VALUE[is_password] and _is_mixed(value) and (alone or not said["below"])
    bare = value.strip(".,;:!?()*_\"'`|")
    if not good or _is_placeholder(value) or _is_placeholder(bare) or _PROSE.fullmatch(bare):
        return
    end = start + len(value)
    if not quoted:  # it may be longer than what was looked at; what closes a line of code, or a link, is kept
        in_query = said["sign"] == "=" and "://" in text[max(0, place - 500) : place].rpartition(" ")[2]
        whole = (_IN_QUERY if in_query else _WORD).match(text, start)
        closing = "\"'`,;|" if alone or "(" in value else "\"'`,;|)"
        end = start + len(whole[0].rstrip(closing)) if whole else end
    yield start, end, PASSWORD if is_password else KEY


def _is_mixed(value: str) -> bool:
    """Letters and digits without a space: few words of prose are so."""
    return not re.search(r"\s", value) and bool(re.search(r"[^\W\d_]", value) and re.search(r"\d", value))


def _is_placeholder(value: str) -> bool:
    return not value or bool(_PLACEHOLDER.match(value))
