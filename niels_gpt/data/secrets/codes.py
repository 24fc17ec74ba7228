"""Find codes by their names: PINs, codes of doors, alarms and safes, recovery codes, answers to security questions."""

from __future__ import annotations

import re

from niels_gpt.data.secrets import forms
from niels_gpt.data.secrets.forms import CODE, PASSWORD, PIN, SEED, Found, is_harmless, is_mixed, without_closing

_DIGITS = r"[A-Z]?[0-9]{3,8}[A-Z]?|[0-9]{2}[A-Z][0-9]{2}|[0-9]{1,2}(?:-[0-9]{1,2}){2,3}"
_NUMBER = re.compile(
    rf"(?:(?P<name>{forms.PIN_NAMES})|(?i:{forms.CODE_WORDS}))(?![^\W_])"
    r"(?P<what>(?:[ \t]*\([^()\r\n]{0,40}\))?[^\r\n:=|.;!?\"(0-9\u2192]{0,50}?)"
    rf"(?:(?P<join>[\])*_]{{0,3}}[ \t\u00a0]{{0,3}}(?:[:=\u2192]|->|[-\u2013\u2014](?=\s))[*_]{{0,3}}"
    rf"|[ \t,]+(?:{forms.VERBS}|{forms.DIALLING_VERBS})\b(?:[ \t]+(?:{forms.ADVERBS})\b)?:?)[ \t\u00a0]{{0,3}}|[ \t]+)"
    rf"[\"'`«“„*_ ]{{0,3}}(?P<value>(?:{_DIGITS})(?![\w/-]|[.,:][0-9]|[ \t]?[%€$£°])"
    r"|(?(join)(?=[^\s\"'`«»“”„]{0,39}[0-9])[^\s\"'`«»“”„]{6,40}|(?!)))"
)
_OPENED = re.compile(rf"(?i){forms.OPENED}")
_YEAR = re.compile("(?:19|20)[0-9]{2}")
_NUMBER_FIRST = re.compile(
    rf"(?i)(?<![\w.,:/-])(?P<value>[0-9]{{4,8}})[ \t]+(?:{forms.VALUE_FIRST_VERBS})"
    rf"(?:[ \t]+(?:{forms.ARTICLES})){{0,2}}[ \t]+\Z"
)
_LIST = re.compile(
    r"(?P<name>[^\n:=\d]{0,80})(?::|=|\d{1,2}\))?[ \t]*(?P<list>(?:[\s,;*|>\u2022-]{0,8}(?:[0-9]{1,2}[.)][ \t]+)?"
    r"\b(?=[A-Za-z]{0,9}[0-9-])[A-Za-z0-9]{4,12}(?:(?:-| (?=[A-Za-z]{0,9}[0-9]))[A-Za-z0-9]{3,8}){0,6}\b"
    r"(?!['\u2019:=(/])){1,40})"
)
_KIND = re.compile(rf"(?i)(?:{forms.CODE_KINDS})[ -]?\Z")
_LISTED = re.compile(rf"(?i){forms.CODE_NAMES}")
_IN_LIST = re.compile(r"(?<![\w-])(?![0-9]{1,2}[.)])[A-Za-z0-9]{3,12}(?:[- ][A-Za-z0-9]{3,8})*")
_ANSWER = re.compile(
    rf"(?i)(?:{forms.ANSWERS})[^\r\n,;.`]{{0,80}}(?:[:=?\u2192]|->)[ \t*_]+"
    r"(?P<value>[\w'\u2019-]+(?: [\w'\u2019-]+){0,3})[ \t]*(?=[.)\r\n]|\Z)"
)
_NEXT = r"[a-zß-ÿ]{2,14},?[ \t\n]+"
_PHRASE = re.compile(  # 12, 15, 18, 21 or 24 words
    rf"(?i:{forms.PHRASES})(?:[^\r\n:=\u2192]{{0,50}}(?:[:=\u2192]|->)|[^\r\n]{{0,20}}\n)\s{{0,4}}[\"'`]?"
    rf"(?P<value>(?:{_NEXT}){{9}}(?:(?:{_NEXT}){{3}}){{0,4}}(?:{_NEXT}){{2}}[a-zß-ÿ]{{2,14}})[\"'`]?[ \t]*(?=[\r\n]|\Z)"
)


def find_code(text: str, place: int) -> Found:
    """Yield the codes behind the name at this position: a list of recovery codes, or a number that opens something."""
    if _KIND.search(text, max(0, place - 24), place) or _LISTED.match(text, place):
        found = _LIST.match(text, place)
        codes = (
            [code for code in _IN_LIST.finditer(text, *found.span("list")) if re.search("[0-9]", code[0])]
            if found
            else ()
        )
        yield from ((*code.span(), CODE) for code in codes)
        if codes:
            return
    yield from find_number(text, place)


def find_number(text: str, place: int) -> Found:
    """Yield the number behind PIN, or behind a word such as code where the line says what it opens."""
    start = max(0, place - 40)
    before = text[max(start, text.rfind("\n", start, place) + 1) : place]
    first = _NUMBER_FIRST.search(before) if text.startswith("PIN", place) else None
    if first:
        yield place - len(before) + first.start("value"), place - len(before) + first.end("value"), PIN
    found = _NUMBER.match(text, place)
    if found is None:
        return
    value, join = found["value"], found["join"]
    if not found["name"] and not _OPENED.search(before + found[0][: found.start("value") - place]):
        return
    if not join and found["what"].count(" ") > (2 if found["name"] else 1):
        return
    if re.fullmatch(_DIGITS, value):
        short = 4 if (found["name"][0] in "Pp" if found["name"] else not join) else 3
        if len(value) >= short and (found["name"] or join or not _YEAR.fullmatch(value)):
            yield *found.span("value"), PIN
    elif join and not found["name"]:
        value = without_closing(value, before + found[0][: found.start("value") - place]).rstrip(".,;")
        if len(value) >= 6 and is_mixed(value) and not is_harmless(value):
            yield found.start("value"), found.start("value") + len(value), PASSWORD


def find_words(text: str, place: int) -> Found:
    """Yield the answer to a security question, or a seed phrase with words that no list has."""
    for form, kind in ((_ANSWER, PASSWORD), (_PHRASE, SEED)):
        found = form.match(text, place)
        if found and not is_harmless(found["value"]):
            yield *found.span("value"), kind
