"""Find codes by their names (PINs, codes of doors and safes, recovery codes), and secrets in columns of tables."""

import re

from niels_gpt.data.secrets import forms
from niels_gpt.data.secrets.forms import Found, words

_DIGITS = r"[A-Z]?[0-9]{3,8}[A-Z]?|[0-9]{2}[A-Z][0-9]{2}|[0-9]{1,2}(?:-[0-9]{1,2}){2,3}"
_NUMBER = re.compile(
    rf"(?:(?P<name>{forms.PIN_NAMES})|(?i:{words('code')}))(?![^\W_])"
    r"(?P<what>(?:[ \t]*\([^()\r\n]{0,40}\))?[^\r\n:=|.;!?\"(0-9\u2192]{0,50}?)"
    rf"(?:(?P<join>[\])*_]{{0,3}}[ \t\u00a0]{{0,3}}(?:[:=\u2192]|->|[-\u2013\u2014](?=\s))[*_]{{0,3}}"
    rf"|[ \t,]+(?:{forms.VERBS}|{words('dial')})\b(?:[ \t]+(?:{words('now')})\b)?:?)[ \t\u00a0]{{0,3}}|[ \t]+)"
    rf"[\"'`«“„*_ ]{{0,3}}(?P<value>(?:{_DIGITS})(?![\w/-]|[.,:][0-9]|[ \t]?[%€$£°])"
    r"|(?(join)(?=[^\s\"'`«»“”„]{0,39}[0-9])[^\s\"'`«»“”„]{6,40}|(?!)))"
)
_OPENED = re.compile(f"(?i){words('opened')}")
_YEAR = re.compile("(?:19|20)[0-9]{2}")
_NUMBER_FIRST = re.compile(
    rf"(?i)(?<![\w.,:/-])(?P<value>[0-9]{{4,8}})[ \t]+(?:{words('as')})"
    rf"(?:[ \t]+(?:{words('the')})){{0,2}}[ \t]+\Z"
)
_LIST = re.compile(
    r"(?i:c[oó]d)[^\n:=\d]{0,80}(?::|=|\d{1,2}\))?[ \t]*(?P<list>(?:[\s,;*|>\u2022-]{0,8}(?:[0-9]{1,2}[.)][ \t]+)?"
    r"\b(?=[A-Za-z]{0,9}[0-9-])[A-Za-z0-9]{4,12}(?:(?:-| (?=[A-Za-z]{0,9}[0-9]))[A-Za-z0-9]{3,8}){0,6}\b"
    r"(?!['\u2019:=(/])){1,40})"
)
_CODE_KINDS = re.compile(rf"(?i)(?:{words('kind of code')})[ -]?\Z")
_CODE_NAMES = re.compile(f"(?i){words('code by its name')}")
_IN_LIST = re.compile(r"(?<![\w-])(?![0-9]{1,2}[.)])(?=[A-Za-z -]*[0-9])[A-Za-z0-9]{3,12}(?:[- ][A-Za-z0-9]{3,8})*")


def find_list(text: str, place: int) -> Found:
    """Yield the recovery codes listed behind the word code at this position."""
    found = _LIST.match(text, place)
    if found and (_CODE_KINDS.search(text, max(0, place - 24), place) or _CODE_NAMES.match(text, place)):
        yield from ((*code.span(), forms.CODE) for code in _IN_LIST.finditer(text, *found.span("list")))


def find_number(text: str, place: int) -> Found:
    """Yield the number behind PIN, or behind a word such as code where the line says what it opens."""
    before = forms.line_before(text, place, most=40)
    if text.startswith("PIN", place) and (first := _NUMBER_FIRST.search(before)):
        yield place - len(before) + first.start("value"), place - len(before) + first.end("value"), forms.PIN
    found = _NUMBER.match(text, place)
    if found is None:
        return
    value, join, name = found["value"], found["join"], found["name"]
    before += found[0][: found.start("value") - place]
    if not (name or _OPENED.search(before)) or (not join and found["what"].count(" ") > (2 if name else 1)):
        return
    if re.fullmatch(_DIGITS, value):
        short = 4 if (name[0] in "Pp" if name else not join) else 3
        if len(value) >= short and (name or join or not _YEAR.fullmatch(value)):
            yield *found.span("value"), forms.PIN
    elif join and not name:
        value = forms.without_closing(value, before).rstrip(".,;")
        if len(value) >= 6 and forms.is_mixed(value) and not forms.is_harmless(value):
            yield found.start("value"), found.start("value") + len(value), forms.PASSWORD


_HEAD = re.compile(rf"{forms.NAME}[\s*_`]*\Z|(?P<pin>\b(?:PIN|PUK|CV[VC]))[\s*_`]*\Z")
_HEAD_END = re.compile(r"\w{0,60}[ \"'*`]{0,3}(?:[|,;\t\r\n]|(?<=  ))")
_RULE = re.compile(r"\n[ \t>]*+\|?+[ \t]*+:?+-[-:| \t\r]*+(?=\n|\Z)")  # below the heads of a Markdown table
_ROW = re.compile("\n([^\n]+)")
_CELLS = {
    "|": re.compile(r"(?:\A|\|)([^|]*)"),
    ",": re.compile(r"(?:\A|,)(\"[^\"]*\"|[^,]*)"),
    ";": re.compile(r"(?:\A|;)(\"[^\"]*\"|[^;]*)"),
    "\t": re.compile(r"(?:\A|\t)([^\t]*)"),
    "  ": re.compile(r"(\S+(?: \S+)*)"),
}


def find_columns(text: str, place: int) -> Found:
    """Yield what stands below a name that heads a column: in Markdown, CSV, TSV, or aligned by spaces."""
    end = text.find("\n", place, place + 200) if _HEAD_END.match(text, place) else -1
    line = forms.line_before(text, place) + text[place:end] if end > 0 else ""
    for mark, form in _CELLS.items():
        heads = [_HEAD.search(cell[1].strip("\"'\r")) for cell in form.finditer(line)] if mark in line else []
        rule = _RULE.match(text, end) if mark == "|" else None
        if len(heads) < 2 or not any(heads) or (mark == "|" and not rule):
            continue
        at = rule.end() if rule else end
        while (row := _ROW.match(text, at)) and not _RULE.match(text, at):
            at, cells = row.end(), list(form.finditer(row[1]))
            found = list(_in_row(row.start(1), heads, cells))
            if "|" not in row[1] if rule else not found or len(cells) != len(heads):
                break
            yield from found


def _in_row(row: int, heads: list[re.Match[str] | None], cells: list[re.Match[str]]) -> Found:
    for head, cell in zip(heads, cells, strict=False):
        value = cell[1].strip(" \t\r`*\"'")
        if head is None or forms.is_harmless(value):
            continue
        start = row + cell.start(1) + cell[1].index(value)
        if head["pin"]:
            kind, good = forms.PIN, bool(re.fullmatch("[0-9]{3,8}", value))
        elif head["password"]:
            kind, good = forms.PASSWORD, bool(re.fullmatch(rf"\S{{{forms.SHORTEST_PASSWORD},}}", value))
        else:
            kind = forms.kind_of(head)
            good = len(value) >= forms.SHORTEST_VALUE[False] and forms.is_mixed(value)
        if good:
            yield start, start + len(value), kind
