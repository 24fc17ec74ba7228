"""The run log: a line for a person, and the same as JSON in a file that is not versioned."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from niels_gpt.files.progress import format_duration, say_above_bar
from niels_gpt.train.meter import StepReport


def format_report(report: StepReport) -> str:
    rows = sum(report.drawn_rows.values())
    mix = " ".join(f"{name} {count / rows:.3f}" for name, count in report.drawn_rows.items())
    val = "" if report.val_loss is None else f"  val {report.val_loss:.4f}"
    used = "" if report.utilisation is None else f" ({report.utilisation:.0%} of the machine)"
    return (
        f"step {report.step:>{len(str(report.total_steps))}}/{report.total_steps}  "
        f"loss {report.loss:.4f}{val}  lr {report.lr:.2e}  "
        f"{report.tokens_per_second:,.0f} tok/s{used}  {format_duration(report.seconds_left)} left  drawn: {mix}"
    )


class RunLog:
    """Appends to `path`, so that the parts of an interrupted run stand one after the other.

    Experiments that run at once share the file, so every line names its `run`: the fingerprint of all that decides its
    numbers. `origin` says of what and by what it is trained: the commit, the machine.
    """

    def __init__(
        self,
        path: Path,
        *,
        run: str,
        decode: Callable[[Sequence[int]], str],
        origin: Mapping[str, str] | None = None,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._run, self._decode, self._origin = path, run, decode, origin or {}
        self._before = "\n" if _ends_within_a_line(path) else ""

    def __call__(self, report: StepReport) -> None:
        say_above_bar(format_report(report))
        sample = self._decode(report.sample)
        if sample:
            say_above_bar(f"  writes: {json.dumps(sample, ensure_ascii=False)}")
        with self._path.open("a", encoding="utf-8") as f:
            line = {"run": self._run, "time": round(time.time(), 3), **vars(report), "sample": sample, **self._origin}
            f.write(f"{self._before}{json.dumps(line)}\n")
        self._before = ""


def _ends_within_a_line(path: Path) -> bool:
    """A process was killed as it wrote, or the disk was full."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as f:
        f.seek(-1, os.SEEK_END)
        return f.read() != b"\n"
