"""Progress of a long job: a bar on a terminal, and plain lines now and then where the output is a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

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
