"""Training checkpoints: the state that an interrupted run resumes from, and the run folder that keeps it.

The folder's name is a fingerprint of everything that determines the run's results, so a run with another learning rate
uses another folder and can never pick up these weights. One process at a time may hold a folder.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from niels_gpt.checkpoint import load_tensors, save_tensors
from niels_gpt.config import TrainConfig


@dataclass
class RunState:
    """State of a run after `step` steps. It has no RNG state: all randomness is derived from (seed, step)."""

    step: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    best_model: dict[str, Any] | None = None
    best_val_loss: float | None = None
    best_step: int | None = None
    drawn_rows: dict[str, int] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)  # nats/token, one per step
    validations: list[dict[str, float]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)  # at some validations: step, prompt length, ids

    def ended(self, cfg: TrainConfig) -> bool:
        """Return whether all steps are done, or the last `cfg.patience` validations were all worse than the best."""
        worse = sum(validation["step"] > (self.best_step or 0) for validation in self.validations)
        return self.step >= cfg.total_steps or (cfg.patience is not None and worse >= cfg.patience)


class RunFolder:
    """Folder of one run, with a lock file and `state.pt`, which each save replaces atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state, self._forced = path / "state.pt", path / "forced"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder; raise if another process holds it. The lock ends with its process."""
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
            for stale in self.path.glob(".*.tmp*"):  # left by a killed writer
                stale.unlink()
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def load(self) -> RunState | None:
        """Return the saved state, in CPU memory, or None if there is none."""
        if not self._state.is_file():
            return None
        try:
            return RunState(**load_tensors(self._state, "cpu"))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{error}; to start this training anew, delete {self.path}") from error

    def save(self, state: RunState) -> None:
        """Write the state, replacing the previous one atomically."""
        save_tensors(self._state, dict(vars(state)))

    def finish(self, record: str = "") -> None:
        """Mark the run as finished, once its results are written.

        `record` is the stage's current entry in the lock file. If it differs later, these results are
        recorded, too.
        """
        (self.path / "finished").write_text("forced" if self._forced.exists() else record, encoding="utf-8")
        self._forced.unlink(missing_ok=True)

    def forget_recorded(self, record: str) -> None:
        """Delete the state of a finished run whose results are recorded, so that it is trained anew.

        Recorded means that `record`, the stage's current entry in the lock file, differs from that given to `finish`.
        """
        finished = self.path / "finished"
        if not finished.is_file() or finished.read_text(encoding="utf-8") == record:
            return
        self._forced.touch()  # a forced run may leave the record unchanged, so the next check must not compare
        self._state.unlink(missing_ok=True)
        finished.unlink()  # last: if killed before this, the next call repeats all of it


def prune_runs(root: Path, *, keep: int) -> None:
    """Delete the least recently used run folders, except the newest `keep` and those that a process holds."""
    folders = [folder for folder in root.glob("*") if (folder / "lock").is_file()]
    folders.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in folders[keep:]:
        _delete_unless_held(folder)


def delete_runs(root: Path, *, unfinished: bool) -> tuple[int, int]:
    """Delete the folders of finished runs, and with `unfinished` all others; return (folders, bytes) freed.

    Folders that a process holds are kept.
    """
    folders = [folder for folder in sorted(root.glob("*")) if (folder / "lock").is_file()]
    chosen = [folder for folder in folders if unfinished or (folder / "finished").is_file()]
    freed = [size for folder in chosen if (size := _delete_unless_held(folder)) is not None]
    return len(freed), sum(freed)


def _delete_unless_held(folder: Path) -> int | None:
    """Delete a folder and return the bytes freed; None if a process holds it or has just deleted it."""
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            shutil.rmtree(folder)
    except (BlockingIOError, FileNotFoundError):
        return None
    return size
