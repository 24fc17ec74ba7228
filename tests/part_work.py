"""Worker functions for test_engine, in a small module of their own, since worker processes import it."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from niels_gpt.files.checks import Damaged
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import Record, Worker


@dataclass(frozen=True)
class Piece:
    """Part to work on, and the folder in which every try leaves a file."""

    name: str
    folder: str

    def tries(self) -> int:
        return len(list(Path(self.folder).glob(f"{self.name}.try*")))

    def note_try(self) -> int:
        """Record a try; return the number of tries before it."""
        before = self.tries()
        Path(self.folder, f"{self.name}.try{before}").write_text(str(os.getpid()))
        return before


def pieces(folder: Path, n: int) -> list[Piece]:
    return [Piece(f"part-{i:05d}", str(folder)) for i in range(n)]


def answer(item: Piece, worker: Worker) -> str:
    item.note_try()
    worker.tick(3)
    worker.tick(4)
    return f"done {item.name}"


def killed_once(item: Piece, worker: Worker) -> str:
    if item.note_try() == 0 and item.name.endswith(("1", "3")):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"done {item.name}"


def always_killed(item: Piece, worker: Worker) -> str:
    if item.name.endswith("1"):
        item.note_try()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"done {item.name}"


def no_disk(item: Piece, worker: Worker) -> str:
    if item.name.endswith("1"):
        item.note_try()
        raise OSError("the disk is away")
    return f"done {item.name}"


class Odd(Exception):
    """Exception that cannot be sent to another process."""

    def __init__(self, what: str, where: Callable[[], None]) -> None:
        super().__init__(what)
        self.where = where


def odd_error(item: Piece, worker: Worker) -> str:
    raise Odd("something odd", lambda: None)


def damaged_input(item: Piece, worker: Worker) -> str:
    if item.name.endswith("1"):
        item.note_try()
        raise Damaged(f"{item.name}.parquet", "is damaged", others=["beside"])
    return f"done {item.name}"


def first_ends_when_another_has_begun(item: Piece, worker: Worker) -> str:
    """Return for part 0 as soon as another part has begun; sleep for 600 s for the others."""
    if item.name.endswith("0"):
        while not list(Path(item.folder).glob("*[1-9].try*")):
            time.sleep(0.01)
        return "done"
    item.note_try()
    time.sleep(600)
    return "too late"


# Workers that return a record


def write_file(item: Piece, worker: Worker) -> Record:
    item.note_try()
    store = Store(item.folder).below("store")
    with store.writing(f"{item.name}.bin") as path:
        path.write_text(item.name)
    return {"files": [{"file": f"{item.name}.bin", "bytes": len(item.name)}], "size": len(item.name)}
