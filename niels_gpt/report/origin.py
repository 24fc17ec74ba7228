"""When, where and of which commit the models of this checkout were trained, as their logs tell.

Results of the pipeline say nothing of it: equal inputs give equal bytes. So it is looked up for a page that is shown,
and a model is known again by its losses: those in its history are those of one run's log.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from niels_gpt.files.progress import format_duration
from niels_gpt.report.history import History
from niels_gpt.report.page import render_table
from niels_gpt.report.runs import Run

_HEAD = ("training", "ended", "took", "machine", "commit")


def run_of(history: History, runs: Sequence[Run], *, stage: str) -> Run | None:
    """The run that logged what the history of a model has, the last one where several did."""
    same = [run for run in runs if run.stage == stage and run.finished and _logged_by(run, history.losses)]
    return max(same, key=lambda run: run.time, default=None)


def _logged_by(run: Run, losses: Sequence[float]) -> bool:
    return run.step == len(losses) and all(point.loss == losses[point.step - 1] for point in run.points)


def render_origin(found: Mapping[str, Run | None]) -> str:
    """A section of the page, by training."""
    rows = [
        (stage, _when(run.time), _long(run), run.machine or "not logged", run.commit or "not logged")
        for stage, run in found.items()
        if run is not None
    ]
    missing = [stage for stage, run in found.items() if run is None]
    note = (
        f'<p class="note">Of {", ".join(missing)} there is no log in this checkout: the weights came from a cache or '
        "from another machine.</p>"
        if missing
        else ""
    )
    table = render_table(_HEAD, rows) if rows else ""
    return f"<section><h2>When and where</h2>{table}{note}</section>" if found else ""


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _long(run: Run) -> str:
    return format_duration(run.seconds) if run.seconds else "not logged"
