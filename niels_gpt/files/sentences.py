"""Error messages: what went wrong, as one sentence that names the file; and text of others."""

from __future__ import annotations

import os
import re
from pathlib import Path

# What the world may do to a program: bad input, a full disk, no memory. Anything else is a fault of the program's own,
# and its traceback is what finds it.
EXPECTED = (ValueError, OSError, RuntimeError, MemoryError, OverflowError, EOFError)


_TEMPORARY = re.compile(r"\.([^/\s]+)\.tmp\d+")  # what atomic.py calls a file until it is whole

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def sentence(error: BaseException) -> str:
    """An error as one line, the path included where the system knows it."""
    return visible(_TEMPORARY.sub(r"\1", _told(error)))


def _told(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory: take a smaller B, T or model, or stop what else runs here"
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, OSError):
        return text
    reason, file = error.strerror or text, error.filename
    if file is None or isinstance(file, int):
        return reason
    name = os.fsdecode(file)
    return reason if name in reason else f"{name}: {reason}"


def name_file(error: OSError, path: str | Path) -> None:
    """Where an error of the system names no file (a write to a full disk does not), let it name this one."""
    if error.filename is None and error.errno is not None and str(path):
        error.filename = str(path)


def visible(text: str) -> str:
    """Somebody's text as a terminal may show it: control characters, which could command it, by number."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def read_text(path: str | Path) -> str:
    """A file's text, or a ValueError that names it where it is none."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start + 1}): save it as UTF-8") from error
