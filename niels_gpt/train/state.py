"""Training checkpoints: what an interrupted run resumes from, and the folder that keeps it.

The folder is named by a fingerprint of everything that decides the run's numbers, so another learning rate looks in
another folder and can never pick up these weights. One process at a time may hold a folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from niels_gpt.checkpoint import load_tensors, save_tensors


@dataclass
class RunState:
    """After `step` steps. No RNG state: every draw is derived from (seed, step)."""

    step: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    best_model: dict[str, Any] | None = None
    best_val_loss: float | None = None
    best_step: int | None = None
    drawn_rows: dict[str, int] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)  # one a step
    validations: list[dict[str, float]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)  # of some validations: step, length of the prompt, ids


class RunFolder:
    """Folder of one run: a lock, and `state.pt`, which each save replaces atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state, self._forced = path / "state.pt", path / "forced"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; a second process on the same run is refused (the lock dies with its process)."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                lock.seek(0)
                raise ValueError(
                    f"this very training is already running (process {lock.read().strip() or 'unknown'}): "
                    "wait for it, or stop it and run again"
                ) from error
            for stale in self.path.glob(".*.tmp*"):  # of a writer that was killed
                stale.unlink()
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def load(self) -> RunState | None:
        """In the CPU's memory, from where model and optimizer copy it."""
        if not self._state.is_file():
            return None
        try:
            return RunState(**load_tensors(self._state, "cpu"))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{error}; to start this training anew, delete {self.path}") from error

    def save(self, state: RunState) -> None:
        save_tensors(self._state, dict(vars(state)))

    def finish(self, record: str = "") -> None:
        """Mark the run as finished: its results are written. `record` is what its owner has recorded of the stage so
        far; another one later means that these results were recorded, too."""
        (self.path / "finished").write_text("forced" if self._forced.exists() else record, encoding="utf-8")
        self._forced.unlink(missing_ok=True)

    def forget_recorded(self, record: str) -> None:
        """Delete the state of a finished run whose results were recorded: asked for once more, it begins anew."""
        finished = self.path / "finished"
        if not finished.is_file() or finished.read_text(encoding="utf-8") == record:
            return
        self._forced.touch()  # its record may be the same as before, so `finish` must not compare
        self._state.unlink(missing_ok=True)
        finished.unlink()  # last: killed before, it is done again


def prune_runs(root: Path, *, keep: int) -> None:
    """Delete the run folders that were used longest ago, but for the newest `keep` and those a process holds."""
    folders = [folder for folder in root.glob("*") if (folder / "lock").is_file()]
    folders.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in folders[keep:]:
        _delete_unless_held(folder)


def delete_runs(root: Path, *, unfinished: bool) -> tuple[int, int]:
    """Delete the folders of finished runs, and of unfinished ones too if asked; (folders, bytes) that were freed."""
    count = size = 0
    for folder in sorted(root.glob("*")):
        if (folder / "lock").is_file() and (unfinished or (folder / "finished").is_file()):
            freed = _delete_unless_held(folder)
            if freed is not None:
                count, size = count + 1, size + freed
    return count, size


def _delete_unless_held(folder: Path) -> int | None:
    """Bytes that were freed; None where a process holds the folder, or has deleted it."""
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            shutil.rmtree(folder)
    except (BlockingIOError, FileNotFoundError):
        return None
    return size
