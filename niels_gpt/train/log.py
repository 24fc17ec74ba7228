"""The run log: a line for a person, and the same as JSON in a file that nobody tracks."""

from __future__ import annotations

import json
from pathlib import Path

from niels_gpt.progress import say_above_bar
from niels_gpt.train.loop import StepReport


def format_report(report: StepReport, *, total_steps: int) -> str:
    rows = sum(report.drawn_rows.values())
    mix = " ".join(f"{name} {count / rows:.3f}" for name, count in report.drawn_rows.items())
    val = "" if report.val_loss is None else f"  val {report.val_loss:.4f}"
    return (
        f"step {report.step:>{len(str(total_steps))}}/{total_steps}  loss {report.loss:.4f}{val}  lr {report.lr:.2e}  "
        f"{report.tokens_per_second:,.0f} tok/s  drawn: {mix}"
    )


class RunLog:
    """Appends to `path`, so that the parts of an interrupted run stand one after the other."""

    def __init__(self, path: Path, *, total_steps: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._total_steps = path, total_steps

    def __call__(self, report: StepReport) -> None:
        say_above_bar(format_report(report, total_steps=self._total_steps))
        with self._path.open("a", encoding="utf-8") as f:
            f.write(json.dumps(vars(report)) + "\n")
