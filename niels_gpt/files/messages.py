"""Output for the terminal: one-line error messages, escaped text, and progress."""

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Errors with causes outside the program (bad input, a full disk, no memory), reported in one line. Any other exception
# is a bug and keeps its traceback.
EXPECTED = (ValueError, OSError, RuntimeError, MemoryError, OverflowError, EOFError)

_TEMPORARY = re.compile(r"\.([^/\s]+)\.tmp\d+")  # temporary names of atomic.py; messages show the final name
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def sentence(error: BaseException) -> str:
    """Return an error as one printable line, including the path of an OSError if it has one."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, MemoryError):
        text = "there is not enough memory: take a smaller B, T or model, or stop what else runs here"
    elif isinstance(error, OSError):
        text, file = error.strerror or text, error.filename
        if not isinstance(file, int | None) and (name := os.fsdecode(file)) not in text:
            text = f"{name}: {text}"
    return visible(_TEMPORARY.sub(r"\1", text))


def name_file(error: OSError, path: str | Path) -> None:
    """Set the error's file name to `path` if the system gave none, as on a write to a full disk."""
    if error.filename is None and error.errno is not None and str(path):
        error.filename = str(path)


def visible(text: str) -> str:
    """Escape control characters as \\xNN, since untrusted text could send commands to the terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def read_text(path: str | Path) -> str:
    """Read a UTF-8 file; the ValueError for other encodings names the file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start + 1}): save it as UTF-8") from error


_LINE_EVERY_S = 4.0  # seconds between progress lines where there is no terminal


class Progress:
    """Progress bar on stderr or, without a terminal, lines for logs: "eval: 34% of 120,000 tokens, 12 s left"."""

    def __init__(self, bar: Any, *, total: int | None, unit: str, title: str, initial: int) -> None:
        """Take a bar of tqdm's, or None to print lines."""
        self._bar, self._total, self._unit, self._title = bar, total, unit.strip(), title
        self._initial = self._done = initial
        self._start = self._last = time.monotonic()

    def update(self, n: int) -> None:
        self._done += n
        if self._bar is not None:
            self._bar.update(n)
        elif (now := time.monotonic()) - self._last >= _LINE_EVERY_S:
            self._last = now
            print(f"{self._title}: {self._line(now - self._start)}", file=sys.stderr, flush=True)

    def _line(self, seconds: float) -> str:
        if self._total is None:
            return f"{self._done:,} {self._unit}"
        # The total may be an estimate.
        left = seconds * max(0, self._total - self._done) / max(1, self._done - self._initial)
        share = min(99, 100 * self._done // self._total)
        return f"{share}% of {self._total:,} {self._unit}, {format_duration(left)} left"

    def rate(self) -> str:
        """Return the bytes done and the speed, for a progress in bytes."""
        seconds = max(1e-9, time.monotonic() - self._start)
        return f"{self._done:,} bytes, {self._done / seconds / 1e6:,.1f} MB/s"


@contextmanager
def progress(*, total: int | None, unit: str, title: str, initial: int = 0) -> Iterator[Progress]:
    """Yield progress to `update(n)`: a bar, or lines every few seconds if stderr is not a terminal."""
    how: dict[str, Any] = {"total": total, "unit": unit, "initial": initial}
    if not sys.stderr.isatty():
        yield Progress(None, title=title, **how)
        return
    from tqdm import tqdm  # imported only if a bar is shown

    with tqdm(desc=title, unit_scale=unit == "B", dynamic_ncols=True, leave=False, **how) as bar:
        yield Progress(bar, title=title, **how)


def format_duration(seconds: float) -> str:
    """Format seconds as "5 s", "2 min 05 s" or "1 h 02 min"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: "1 document", "2 documents"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def say_above_bar(line: str) -> None:
    """Print a line without breaking a progress bar."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(line)
    else:
        print(line, flush=True)
