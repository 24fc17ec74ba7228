"""Text for people: errors as one sentence, text made printable, and progress."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

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


_LINE_EVERY_S = 15.0


class Bar(Protocol):
    def update(self, n: int) -> object: ...


class _NoBar:
    def update(self, n: int) -> None:
        pass


@contextmanager
def progress(*, total: int | None, unit: str, title: str, initial: int = 0) -> Iterator[Bar]:
    """Something to `update(n)` as work gets done."""
    if not sys.stderr.isatty():
        yield _NoBar()
        return
    from tqdm import tqdm  # only people at a terminal need it installed

    with tqdm(
        total=total, initial=initial, unit=unit, unit_scale=unit == "B", desc=title, dynamic_ncols=True, leave=False
    ) as bar:
        yield bar


def format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


class Tally:
    """Counts the bytes of a stream whose end nobody knows."""

    def __init__(self, bar: Bar, title: str) -> None:
        self._bar: Any = bar
        self._title = title
        self._bytes = 0
        self._start = self._last = time.monotonic()

    def __call__(self, size: int) -> None:
        self._bytes += size
        self._bar.update(size)
        now = time.monotonic()
        if isinstance(self._bar, _NoBar) and now - self._last > _LINE_EVERY_S:
            self._last = now
            print(f"{self._title}: {self}", flush=True)

    def __str__(self) -> str:
        seconds = max(1e-9, time.monotonic() - self._start)
        return f"{self._bytes:,} bytes, {self._bytes / seconds / 1e6:,.1f} MB/s"


def say_above_bar(line: str) -> None:
    """Print a line without tearing a bar that may be showing."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(line)
    else:
        print(line, flush=True)
