"""The run log: a line for a person, and the same as JSON in a file that is not versioned."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from niels_gpt.files.progress import say_above_bar
from niels_gpt.train.meter import StepReport


def format_report(report: StepReport, *, total_steps: int) -> str:
    rows = sum(report.drawn_rows.values())
    mix = " ".join(f"{name} {count / rows:.3f}" for name, count in report.drawn_rows.items())
    val = "" if report.val_loss is None else f"  val {report.val_loss:.4f}"
    used = "" if report.utilisation is None else f" ({report.utilisation:.0%} of the machine)"
    return (
        f"step {report.step:>{len(str(total_steps))}}/{total_steps}  loss {report.loss:.4f}{val}  lr {report.lr:.2e}  "
        f"{report.tokens_per_second:,.0f} tok/s{used}  {format_duration(report.seconds_left)} left  drawn: {mix}"
    )


def format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


class RunLog:
    """Appends to `path`, so that the parts of an interrupted run stand one after the other."""

    def __init__(self, path: Path, *, total_steps: int, decode: Callable[[Sequence[int]], str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._total_steps, self._decode = path, total_steps, decode

    def __call__(self, report: StepReport) -> None:
        say_above_bar(format_report(report, total_steps=self._total_steps))
        sample = self._decode(report.sample)
        if sample:
            say_above_bar(f"  writes: {json.dumps(sample, ensure_ascii=False)}")
        with self._path.open("a", encoding="utf-8") as f:
            f.write(json.dumps({**vars(report), "sample": sample}) + "\n")
