"""Runs as series of points, read from growing log files.

Every line names its run, so that several may share a file. A resumed run continues after its last checkpoint: points
logged beyond that step are reverted, and logged again with the same numbers. A run that starts again after it has
finished is a new run.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ValidationError


class Line(BaseModel):
    """Line of a log: a StepReport of niels_gpt.train.meter, with the run, the time and the sample as text."""

    run: str
    time: float  # Unix time in seconds
    step: int
    total_steps: int
    first_step: int  # step that its process resumed from
    tokens: int
    loss: float
    lr: float
    tokens_per_second: float
    utilisation: float | None  # MFU relative to a measured matrix product, 0 to 1
    seconds_left: float
    asked: dict[str, float]  # probability of a row, by source
    drawn_rows: dict[str, int]
    val_loss: float | None  # nats/token
    validation: dict[str, float] | None  # loss by source
    sample: str
    name: str = ""  # given to its experiment by a person, or empty
    seconds: float = 0.0
    commit: str = ""
    machine: str = ""


@dataclass
class Run:
    """Run as logged so far, a line per point."""

    name: str
    stage: str
    points: list[Line] = field(default_factory=list)
    _reverted: int = 0  # points that were lost in a crash, and are logged again
    _earlier_seconds: float = 0.0  # training time of the processes before the last

    @property
    def last(self) -> Line:
        return self.points[-1]

    @property
    def title(self) -> str:
        """Name for a person: that of its experiment, or its main source and when it began, in local time."""
        first, began = self.points[0], time.localtime(self.points[0].time)
        own = max(first.asked, key=lambda name: first.asked[name], default="")
        named = first.name or f"{own}, {began.tm_mday} {time.strftime('%b %H:%M', began)}"
        return f"{self.stage}: {named}"

    @property
    def revision(self) -> int:
        """Number that differs between runs of one name, and changes whenever points are reverted."""
        return int(1000 * self.points[0].time) + self._reverted

    @property
    def seconds(self) -> float:
        """Training time in seconds, including steps that were repeated after a crash."""
        return self._earlier_seconds + self.last.seconds

    @property
    def finished(self) -> bool:
        return self.last.step >= self.last.total_steps

    @property
    def silent_from(self) -> float:
        """Unix time in seconds after which its process is assumed to be gone."""
        # 3 times the interval between its last two lines, plus 60 s: a validation and a sample may lie in between.
        last, before = self.last, self.points[-2].step if len(self.points) > 1 else 0
        pace = last.seconds_left / max(1, last.total_steps - last.step)
        return last.time + 3 * pace * (last.step - max(before, last.first_step)) + 60

    def add(self, line: Line) -> None:
        """Append a line; first revert those that a resumed process is to log again."""
        if self.points and (line.step <= self.last.step or line.first_step != self.last.first_step):
            self._earlier_seconds = self.seconds
            kept = [point for point in self.points if point.step <= line.first_step]
            self._reverted += len(self.points) - len(kept)
            self.points = kept
        self.points.append(line)


def parse_log(lines: Iterable[bytes], *, stage: str) -> tuple[list[Run], int]:
    """Return the runs that the lines of a stage's log are points of, and the number of unreadable lines."""
    runs: list[Run] = []
    unread = 0
    for text in lines:
        try:
            line = Line.model_validate_json(text)
        except ValidationError:
            unread += 1
            continue
        same = [run for run in runs if run.last.run == line.run]
        if not same or (same[-1].finished and line.first_step == 0):
            again = f"-{len(same) + 1}" if same else ""
            same.append(Run(f"{stage}-{line.run[:8]}{again}", stage))
            runs.append(same[-1])
        same[-1].add(line)
    return runs, unread


def read_logs(folder: Path) -> tuple[list[Run], dict[str, int]]:
    """Return the runs logged in a folder, the last heard of first, and {file: lines damaged or of another version}."""
    runs: list[Run] = []
    unread = {}
    for path in sorted(path for path in folder.glob("*.jsonl") if path.is_file()):
        found, unread[path.name] = _read_log(path, path.stat().st_size, path.stat().st_mtime_ns)
        runs += found
    return sorted(runs, key=lambda run: -run.last.time), {name: bad for name, bad in unread.items() if bad}


def present_runs(runs: Sequence[Run], stages: Sequence[str]) -> list[str]:
    """Return the names of the runs to show first: the newest of each stage, unless an earlier stage has begun since.

    `runs` is sorted as by `read_logs`; `stages` is in the order of the pipeline.
    """
    newest = {run.stage: run for run in reversed(runs)}
    chosen, begun = [], 0.0
    for run in (newest[stage] for stage in stages if stage in newest):
        if run.last.time >= begun:
            chosen.append(run.name)
        begun = max(begun, run.points[0].time)
    return chosen


@lru_cache(maxsize=32)
def _read_log(path: Path, size: int, changed_ns: int) -> tuple[list[Run], int]:
    """Read a log up to its last complete line; one of the same size and time is not read again."""
    return parse_log(path.read_bytes().split(b"\n")[:-1], stage=path.stem)
