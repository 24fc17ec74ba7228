"""Line editing and history in the terminal, by Python's readline where there is one; else lines as they come.

What was typed is kept in a file for the next chat. It is private: only its owner may read it, and a line that begins
with a space is not kept, as in a shell.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from platformdirs import user_state_path

from niels_gpt.files.atomic import atomic_path

MOST_LINES = 1000


def history_file() -> Path:
    """Return the path of the history in the user's state folder (XDG on Linux)."""
    return user_state_path("niels_gpt") / "chat_history"


def line_reader(file: Callable[[], Path] = history_file) -> Callable[[], str]:
    """What asks for a line. Of a file or a pipe nothing is kept, and nothing is edited in it."""

    def plain() -> str:
        return input("> ")

    try:
        import readline
    except ImportError:  # as on Windows
        return plain
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return plain
    readline.set_auto_history(False)
    readline.clear_history()
    path: Path | None = None
    with suppress(OSError, RuntimeError):  # a home that cannot be written to, or none: a chat without a past
        path = file()
        for line in read_history(path):
            readline.add_history(line)

    def edited() -> str:
        line = plain()
        if line.strip() and not line.startswith(" "):
            readline.add_history(line)
            with suppress(OSError, UnicodeError):
                if path is not None:
                    append_history(path, line)
        return line

    return edited


def read_history(path: Path) -> list[str]:
    """The last lines; a file that has grown far beyond them is cut to them."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if len(lines) > 2 * MOST_LINES:
        with atomic_path(path) as shorter:
            append_history(shorter, "\n".join(lines[-MOST_LINES:]))
    return lines[-MOST_LINES:]


def append_history(path: Path, line: str) -> None:
    """At once, and at the end: two chats at a time lose nothing, nor does one that is killed."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # also of a file that was there
        file.write(f"{line}\n".encode())
