"""A progress bar on a terminal, nothing where the output is a file: there, plain lines tell what was done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Bar(Protocol):
    def update(self, n: int) -> object: ...


class _NoBar:
    def update(self, n: int) -> None:
        pass


@contextmanager
def progress(*, total: int, unit: str, title: str, initial: int = 0) -> Iterator[Bar]:
    """Something to `update(n)` as work gets done."""
    if not sys.stderr.isatty():
        yield _NoBar()
        return
    from tqdm import tqdm  # only people at a terminal need it installed

    with tqdm(total=total, initial=initial, unit=unit, desc=title, dynamic_ncols=True, leave=False) as bar:
        yield bar


def say_above_bar(line: str) -> None:
    """Print a line without tearing a bar that may be showing."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(line)
    else:
        print(line, flush=True)
