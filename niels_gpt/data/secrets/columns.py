"""Find secrets in the columns of tables whose heads are names of secrets: Markdown, CSV, TSV, aligned by spaces."""

from __future__ import annotations

import re

from niels_gpt.data.secrets.forms import (
    KEY,
    NAME,
    PASSWORD,
    PIN,
    SHORTEST_PASSWORD,
    SHORTEST_VALUE,
    Found,
    is_harmless,
    is_mixed,
    line_before,
)

COLUMN_ENDS = (",", ";", "\t", "\r", "\n", " ")
_NAME_ALONE_IN = re.compile(rf"{NAME}[\s*_`]*\Z|(?P<pin>\b(?:PIN|PUK|CV[VC]))[\s*_`]*\Z")
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
        heads = [_NAME_ALONE_IN.search(cell[1]) for cell in _CELLS["|"].finditer(line_before(text, rule.start()))]
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
        if head and _fills(value, head) and not is_harmless(value):
            start = row.start() + cell.start(1) + cell[1].index(value)
            yield start, start + len(value), KEY if head["key"] or head["plain"] else PIN if head["pin"] else PASSWORD


def _fills(value: str, head: re.Match[str]) -> bool:
    if head["pin"]:
        return bool(re.fullmatch("[0-9]{3,8}", value))
    if head["password"]:
        return len(value) >= SHORTEST_PASSWORD and not re.search(r"\s", value)
    return len(value) >= SHORTEST_VALUE[False] and is_mixed(value)
