"""Find codes by their names (PINs, codes of doors and safes, recovery codes, security answers), and in tables."""

from __future__ import annotations

import re

from niels_gpt.data.secrets import forms
from niels_gpt.data.secrets.forms import Found

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
        yield from ((*code.span(), forms.CODE) for code in codes)
        if codes:
            return
    yield from find_number(text, place)


def find_number(text: str, place: int) -> Found:
    """Yield the number behind PIN, or behind a word such as code where the line says what it opens."""
    start = max(0, place - 40)
    before = text[max(start, text.rfind("\n", start, place) + 1) : place]
    first = _NUMBER_FIRST.search(before) if text.startswith("PIN", place) else None
    if first:
        yield place - len(before) + first.start("value"), place - len(before) + first.end("value"), forms.PIN
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
            yield *found.span("value"), forms.PIN
    elif join and not found["name"]:
        value = forms.without_closing(value, before + found[0][: found.start("value") - place]).rstrip(".,;")
        if len(value) >= 6 and forms.is_mixed(value) and not forms.is_harmless(value):
            yield found.start("value"), found.start("value") + len(value), forms.PASSWORD


def find_words(text: str, place: int) -> Found:
    """Yield the answer to a security question, or a seed phrase with words that no list has."""
    for form, kind in ((_ANSWER, forms.PASSWORD), (_PHRASE, forms.SEED)):
        found = form.match(text, place)
        if found and not forms.is_harmless(found["value"]):
            yield *found.span("value"), kind


# Columns of tables whose heads are names of secrets: Markdown, CSV, TSV, aligned by spaces

COLUMN_ENDS = (",", ";", "\t", "\r", "\n", " ")
_NAME_ALONE_IN = re.compile(rf"{forms.NAME}[\s*_`]*\Z|(?P<pin>\b(?:PIN|PUK|CV[VC]))[\s*_`]*\Z")
_ROW = re.compile("[^\n]+")
_RULE = re.compile(r"\n[ \t>]*+\|?+[ \t]*+:?+-[-:| \t\r]*+(?=\n|\Z)")  # below the heads of columns
_ROWS = re.compile(r"(?:\n(?![ \t>|:-]*+\n)[^\n|]*+\|[^\n]*+)++")


_CELLS = {
    "|": re.compile(r"(?:\A|\|)([^|]*)"),
    ",": re.compile(r"(?:\A|,)(\"[^\"]*\"|[^,]*)"),
    ";": re.compile(r"(?:\A|;)(\"[^\"]*\"|[^;]*)"),
    "\t": re.compile(r"(?:\A|\t)([^\t]*)"),
    "  ": re.compile(r"(\S+(?: \S+)*)"),
}


def find_columns(text: str) -> Found:
    """Yield what stands in the columns of a Markdown table whose heads are names of secrets."""
    for rule in _RULE.finditer(text):
        heads = [_NAME_ALONE_IN.search(cell[1]) for cell in _CELLS["|"].finditer(forms.line_before(text, rule.start()))]
        rows = _ROWS.match(text, rule.end()) if any(heads) else None
        for row in _ROW.finditer(text, *rows.span()) if rows else ():
            yield from _row(row, "|", heads)


def below_head(text: str, name: re.Match[str], before: str) -> Found:
    """Yield what stands below a name that is the head of a column: values separated by commas, tabs or spaces."""
    end = text.find("\n", name.end(), name.end() + 200)
    heads_line = before + text[name.start() : end] if end > 0 else ""
    for mark, form in _CELLS.items():
        if mark == "|" or mark not in heads_line:
            continue
        heads = [_NAME_ALONE_IN.search(cell[1].strip("\"'\r")) for cell in form.finditer(heads_line)]
        for row in _ROW.finditer(text, end) if any(heads) and len(heads) > 1 else ():
            found = list(_row(row, mark, heads))
            if not found or len(form.findall(row[0])) != len(heads):
                return
            yield from found


def _row(row: re.Match[str], mark: str, heads: list[re.Match[str] | None]) -> Found:
    for head, cell in zip(heads, _CELLS[mark].finditer(row[0]), strict=False):
        value = cell[1].strip(" \t\r`*\"'")
        if head and _fills(value, head) and not forms.is_harmless(value):
            start = row.start() + cell.start(1) + cell[1].index(value)
            yield (
                start,
                start + len(value),
                forms.KEY if head["key"] or head["plain"] else forms.PIN if head["pin"] else forms.PASSWORD,
            )


def _fills(value: str, head: re.Match[str]) -> bool:
    if head["pin"]:
        return bool(re.fullmatch("[0-9]{3,8}", value))
    if head["password"]:
        return len(value) >= forms.SHORTEST_PASSWORD and not re.search(r"\s", value)
    return len(value) >= forms.SHORTEST_VALUE[False] and forms.is_mixed(value)
