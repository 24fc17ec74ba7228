"""params.yaml as text, other values and reasons written into it line by line: everything else stays as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_KEY = re.compile(r"( *)([\w]+):(?: |$)")
_WIDTH = 118


@dataclass(frozen=True)
class Setting:
    """A value, and why it is that one."""

    value: Any
    reason: str | None = None


def with_section(text: str, name: str, lines: list[str]) -> str:
    """The text with other lines in the place of a section of the top, below the comments that stand before it."""
    kept = text.splitlines()
    first, behind = _section(kept, name)
    return "\n".join([*kept[:first], f"{name}:", *lines, "", *kept[behind:]]) + "\n"


def with_settings(text: str, settings: Mapping[str, Setting]) -> str:
    """The text with values at dotted places. A reason takes the place of the comment before the key; a key that is not
    there yet comes last in its section."""
    lines = text.splitlines()
    for dotted, setting in settings.items():
        *parents, key = dotted.split(".")
        indent = "  " * len(parents)
        new = [*_comment(setting.reason, indent), f"{indent}{key}: {inline(setting.value)}"]
        at = _places(lines).get(dotted)
        if at is None:
            behind = _behind(lines, ".".join(parents))
            lines[behind:behind] = new
            continue
        first = at
        while setting.reason and lines[first - 1].startswith(f"{indent}#"):
            first -= 1
        lines[first : _behind(lines, dotted)] = new
    return "\n".join(lines) + "\n"


def block(values: Mapping[str, Any], *, indent: int) -> list[str]:
    """A mapping as lines; a `Setting` in it with its reason above."""
    lines: list[str] = []
    for key, value in values.items():
        space, setting = " " * indent, value if isinstance(value, Setting) else Setting(value)
        lines += _comment(setting.reason, space)
        if isinstance(setting.value, dict) and setting.value:
            lines += [f"{space}{key}:", *block(setting.value, indent=indent + 2)]
        else:
            lines.append(f"{space}{key}: {inline(setting.value)}")
    return lines


def inline(value: Any) -> str:
    """A value on one line, the same for YAML 1.1 and 1.2: text in quotes, unless it is a plain word."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    if isinstance(value, float):
        return repr(value) if "e" not in repr(value) else f"{value:.12f}".rstrip("0")
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z./][\w./-]*", value) and value.lower() not in WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})  # that are no text without quotes


def _comment(reason: str | None, indent: str) -> list[str]:
    lines, line = [], ""
    for word in (reason or "").split():
        if line and len(indent) + 2 + len(line) + 1 + len(word) > _WIDTH:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return [f"{indent}# {part}" for part in [*lines, line] if part]


def _places(lines: list[str]) -> dict[str, int]:
    """{dotted key: its line} of keys in blocks."""
    found: dict[str, int] = {}
    path: list[str] = []
    for number, line in enumerate(lines):
        if match := _KEY.match(line):
            del path[len(match[1]) // 2 :]
            path.append(match[2])
            found[".".join(path)] = number
    return found


def _behind(lines: list[str], dotted: str) -> int:
    """The line behind the last of a key's own; comments and blank lines there belong to the next."""
    first = _places(lines)[dotted]
    own = len(lines[first]) - len(lines[first].lstrip())
    last = first
    for number in range(first + 1, len(lines)):
        line = lines[number]
        if line.strip() and len(line) - len(line.lstrip()) <= own:
            break
        if line.strip() and not line.lstrip().startswith("#"):
            last = number
    return last + 1


def _section(lines: list[str], name: str) -> tuple[int, int]:
    """Its line, and that of the next section's comment."""
    first, behind = _places(lines)[name], _behind(lines, name)
    while behind < len(lines) and not lines[behind].strip():
        behind += 1
    return first, behind
