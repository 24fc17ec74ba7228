"""Runs as series of points, read from their logs while these grow.

Every line names its run, so that several may share a file. A run that is resumed goes on after the step it was saved
at: what had been logged beyond that comes again, with the same numbers, and is taken back. One that begins anew after
it has ended is a run of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from pydantic import BaseModel, ValidationError

# A run is silent when nothing came for three times as long as there was between its last lines, and a minute more: a
# validation, a sample and a checkpoint may lie in between.
_PATIENCE, _PATIENCE_S = 3, 60
# By its start, in which a time stands, a log is known again; inodes are given out anew as soon as a file is deleted.
_HEAD_BYTES = 256


class Line(BaseModel):
    """One line of a log, as niels_gpt.train.meter writes it."""

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
    """What is known of a run at a step; None is not known."""

    step: int
    tokens: int
    loss: float | None = None
    lr: float | None = None
    tokens_per_second: float | None = None
    utilisation: float | None = None
    val_loss: float | None = None
    validation: Mapping[str, float] | None = None  # by source
    sample: str = ""


@dataclass(frozen=True)
class Drawn:
    """Of one source: the probability that a row is of it, and the rows that were."""

    source: str
    asked: float
    rows: int


@dataclass
class Run:
    """One run as far as it is known. `revision` is another one when points were taken back."""

    name: str
    stage: str
    fingerprint: str
    revision: int
    points: list[Point] = field(default_factory=list)
    drawn: tuple[Drawn, ...] = ()
    total_steps: int = 0
    first_step: int = 0  # that its last process began after
    time: float = 0.0  # of its last line
    seconds_left: float = 0.0  # at that time
    commit: str = ""
    machine: str = ""
    _earlier_seconds: float = 0.0  # of the processes before the last
    _seconds: float = 0.0  # of the last

    @property
    def seconds(self) -> float:
        """How long it was trained for, what a crash took back and was trained again included."""
        return self._earlier_seconds + self._seconds

    @property
    def step(self) -> int:
        return self.points[-1].step if self.points else 0

    @property
    def finished(self) -> bool:
        return self.step >= self.total_steps

    @property
    def silent_from(self) -> float:
        """The time after which its process seems to be gone."""
        before = self.points[-2].step if len(self.points) > 1 else 0
        steps = self.step - max(before, self.first_step)
        pace = self.seconds_left / max(1, self.total_steps - self.step)
        return self.time + _PATIENCE * pace * steps + _PATIENCE_S

    def add(self, line: Line, revisions: Iterator[int]) -> None:
        another_process = line.step <= self.step or line.first_step != self.first_step
        if another_process:
            self._earlier_seconds = self.seconds
        self._seconds, self.commit, self.machine = line.seconds, line.commit, line.machine
        if another_process and line.first_step < self.step:
            self.points = [point for point in self.points if point.step <= line.first_step]
            self.revision = next(revisions)
        self.points.append(Point(**{name: getattr(line, name) for name in Point.__dataclass_fields__}))
        self.drawn = tuple(Drawn(name, line.asked.get(name, 0.0), rows) for name, rows in line.drawn_rows.items())
        self.total_steps, self.first_step = line.total_steps, line.first_step
        self.time, self.seconds_left = line.time, line.seconds_left


def add_lines(runs: list[Run], lines: Iterable[bytes], *, stage: str, revisions: Iterator[int]) -> int:
    """Each line's point becomes part of its run, which begins where there is none; how many lines could not be read."""
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
    """A file of lines, read further each time."""

    def __init__(self, path: Path, revisions: Iterator[int]) -> None:
        self.path, self._revisions = path, revisions
        self._begin()

    def _begin(self) -> None:
        self.runs: list[Run] = []
        self.unread, self._offset, self._head = 0, 0, b""

    def read_on(self) -> None:
        """Up to the end of the last whole line; from the start where the file is another or was cut."""
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
    """The logs of a folder, one a stage."""

    def __init__(self, folder: Path, *, first_revision: int = 0) -> None:
        self._folder, self._revisions = folder, count(first_revision)
        self._logs: dict[Path, Log] = {}

    def read_on(self) -> None:
        paths = [path for path in sorted(self._folder.glob("*.jsonl")) if path.is_file()]
        self._logs = {path: self._logs.get(path) or Log(path, self._revisions) for path in paths}
        for log in self._logs.values():
            with suppress(FileNotFoundError):  # deleted a moment ago: the next time it is not in the list
                log.read_on()

    @property
    def runs(self) -> list[Run]:
        """The one heard of last comes first."""
        return sorted((run for log in self._logs.values() for run in log.runs), key=lambda run: -run.time)

    @property
    def unread(self) -> dict[str, int]:
        """Lines that are none, by file: of another version, or damaged."""
        return {log.path.name: log.unread for log in self._logs.values() if log.unread}
