"""Runs as series of points, read incrementally from growing log files.

Every line names its run, so that several may share a file. A resumed run continues after its last checkpoint: points
logged beyond that step are reverted, and logged again with the same numbers. A run that starts again after it has
finished is a new run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from pydantic import BaseModel, ValidationError

# A run is silent if no line came for 3 times the interval between its last two lines, plus 60 s: a validation, a sample
# and a checkpoint may lie in between.
_PATIENCE, _PATIENCE_S = 3, 60
# A log is identified by its first bytes, which contain a time: inodes are reused as soon as a file is deleted.
_HEAD_BYTES = 256


class Line(BaseModel):
    """Line of a log, as written by niels_gpt.train.meter."""

    run: str
    time: float
    step: int
    total_steps: int
    first_step: int
    tokens: int
    loss: float
    lr: float
    tokens_per_second: float
    utilisation: float | None
    seconds_left: float
    asked: dict[str, float]
    drawn_rows: dict[str, int]
    val_loss: float | None
    validation: dict[str, float] | None
    sample: str
    seconds: float = 0.0
    commit: str = ""
    machine: str = ""


@dataclass(frozen=True)
class Point:
    """State of a run at a step; None means unknown."""

    step: int
    tokens: int
    loss: float | None = None
    lr: float | None = None
    tokens_per_second: float | None = None
    utilisation: float | None = None  # MFU relative to a measured matrix product, 0 to 1
    val_loss: float | None = None  # nats/token
    validation: Mapping[str, float] | None = None  # loss by source
    sample: str = ""


@dataclass(frozen=True)
class SampledRows:
    """Sampling of one source: the probability of a row, and the number of rows sampled so far."""

    source: str
    asked: float
    rows: int


@dataclass
class Run:
    """Run as logged so far; `revision` changes whenever points are reverted."""

    name: str
    stage: str
    fingerprint: str
    revision: int
    points: list[Point] = field(default_factory=list)
    drawn: tuple[SampledRows, ...] = ()
    total_steps: int = 0
    first_step: int = 0  # step that its last process resumed from
    time: float = 0.0  # of its last line, Unix time in seconds
    seconds_left: float = 0.0  # estimated at that time
    commit: str = ""
    machine: str = ""
    _earlier_seconds: float = 0.0  # training time of the processes before the last
    _seconds: float = 0.0  # training time of the last process

    @property
    def seconds(self) -> float:
        """Training time in seconds, including steps that were repeated after a crash."""
        return self._earlier_seconds + self._seconds

    @property
    def step(self) -> int:
        return self.points[-1].step if self.points else 0

    @property
    def finished(self) -> bool:
        return self.step >= self.total_steps

    @property
    def silent_from(self) -> float:
        """Unix time in seconds after which its process is assumed to be gone."""
        before = self.points[-2].step if len(self.points) > 1 else 0
        steps = self.step - max(before, self.first_step)
        pace = self.seconds_left / max(1, self.total_steps - self.step)
        return self.time + _PATIENCE * pace * steps + _PATIENCE_S

    def add(self, line: Line, revisions: Iterator[int]) -> None:
        """Append a line's point; first revert those that a resumed process is to log again."""
        another_process = line.step <= self.step or line.first_step != self.first_step
        if another_process:
            self._earlier_seconds = self.seconds
        self._seconds, self.commit, self.machine = line.seconds, line.commit, line.machine
        if another_process and line.first_step < self.step:
            self.points = [point for point in self.points if point.step <= line.first_step]
            self.revision = next(revisions)
        self.points.append(Point(**{name: getattr(line, name) for name in Point.__dataclass_fields__}))
        self.drawn = tuple(SampledRows(name, line.asked.get(name, 0.0), rows) for name, rows in line.drawn_rows.items())
        self.total_steps, self.first_step = line.total_steps, line.first_step
        self.time, self.seconds_left = line.time, line.seconds_left


def add_lines(runs: list[Run], lines: Iterable[bytes], *, stage: str, revisions: Iterator[int]) -> int:
    """Add each line's point to its run, creating new runs as needed, and return the number of unreadable lines."""
    unread = 0
    for text in lines:
        try:
            line = Line.model_validate_json(text)
        except ValidationError:
            unread += 1
            continue
        same = [run for run in runs if run.fingerprint == line.run]
        if not same or (same[-1].finished and line.first_step == 0):
            again = f"-{len(same) + 1}" if same else ""
            same.append(Run(f"{stage}-{line.run[:8]}{again}", stage, line.run, next(revisions)))
            runs.append(same[-1])
        same[-1].add(line, revisions)
    return unread


class Log:
    """Log file of a stage, read incrementally."""

    def __init__(self, path: Path, revisions: Iterator[int]) -> None:
        self.path, self._revisions = path, revisions
        self._begin()

    def _begin(self) -> None:
        self.runs: list[Run] = []
        self.unread, self._offset, self._head = 0, 0, b""

    def read_on(self) -> None:
        """Read new lines, up to the last complete one; start over if the file was replaced or truncated."""
        with self.path.open("rb") as f:
            head = f.read(_HEAD_BYTES)
            if not head.startswith(self._head) or f.seek(0, os.SEEK_END) < self._offset:
                self._begin()
            self._head = head
            f.seek(self._offset)
            new = f.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        self.unread += add_lines(self.runs, whole.splitlines(), stage=self.path.stem, revisions=self._revisions)


class Logs:
    """Log files of a folder, one per stage."""

    def __init__(self, folder: Path, *, first_revision: int = 0) -> None:
        self._folder, self._revisions = folder, count(first_revision)
        self._logs: dict[Path, Log] = {}

    def read_on(self) -> None:
        """Read new lines of all logs, and drop logs that were deleted."""
        paths = [path for path in sorted(self._folder.glob("*.jsonl")) if path.is_file()]
        self._logs = {path: self._logs.get(path) or Log(path, self._revisions) for path in paths}
        for log in self._logs.values():
            with suppress(FileNotFoundError):  # deleted since the listing; the next call drops it
                log.read_on()

    @property
    def runs(self) -> list[Run]:
        """Runs, the most recently logged first."""
        return sorted((run for log in self._logs.values() for run in log.runs), key=lambda run: -run.time)

    @property
    def unread(self) -> dict[str, int]:
        """Number of unreadable lines by file: damaged, or written by another version."""
        return {log.path.name: log.unread for log in self._logs.values() if log.unread}
