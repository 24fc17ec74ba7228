"""A run as the page takes it: what is to be read as words, what is to be drawn as points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from niels_gpt.files.progress import format_duration
from niels_gpt.report.runs import Drawn, Point, Run


@dataclass(frozen=True)
class Card:
    """`facts` are (what, how much). `points` come after the first `since` ones of this revision, which the page has."""

    name: str
    stage: str
    facts: Sequence[tuple[str, str]]
    points: Sequence[Point]
    drawn: Sequence[Drawn]
    state: str = "finished"
    share: float = 1.0  # of its steps
    time: float | None = None
    revision: int = 0
    since: int = 0
    shown: bool | None = None  # whether it is drawn at first; by itself the page draws the newest of each stage

    def told(self) -> dict[str, Any]:
        """As JSON can say it."""
        rows = sum(drawn.rows for drawn in self.drawn) or 1
        mix = [(d.source, f"{d.asked:.4f}", f"{d.rows / rows:.4f}", f"{d.rows:,}") for d in self.drawn]
        return {**vars(self), "points": [_told(point) for point in self.points], "drawn": mix}


def live_card(run: Run, *, now: float, since: int = 0) -> Card:
    """What its log tells so far; `now` says whether it still seems to run."""
    state = "finished" if run.finished else "silent" if now > run.silent_from else "running"
    return Card(
        name=run.name,
        stage=run.stage,
        facts=[*_progress(run), *_pace(run, state=state, now=now)],
        points=run.points[since:],
        drawn=run.drawn,
        state=state,
        share=run.step / max(1, run.total_steps),
        time=run.time,
        revision=run.revision,
        since=since,
    )


def _progress(run: Run) -> list[tuple[str, str]]:
    last = run.points[-1]
    facts = [("step", f"{run.step:,} of {run.total_steps:,}"), ("tokens", f"{last.tokens:,}")]
    facts.append(("loss", f"{last.loss:.4f}"))
    losses = {point.step: point.val_loss for point in run.points if point.val_loss is not None}
    if losses:
        best = min(losses, key=lambda step: losses[step])
        facts.append(("validation", f"{losses[max(losses)]:.4f}"))
        facts.append(("lowest validation", f"{losses[best]:.4f} at step {best:,}"))
    return facts


def _pace(run: Run, *, state: str, now: float) -> list[tuple[str, str]]:
    last = run.points[-1]
    facts = [("tokens a second", f"{last.tokens_per_second:,.0f}")]
    if last.utilisation is not None:
        facts.append(("share of the machine", f"{last.utilisation:.0%}"))
    if state == "finished" and run.seconds:
        facts.append(("took", format_duration(run.seconds)))
    facts += [(what, it) for what, it in (("machine", run.machine), ("commit", run.commit)) if it]
    if state == "running":
        facts.append(("time left", format_duration(max(0.0, run.seconds_left - (now - run.time)))))
    if state == "silent":
        facts.append(("nothing heard for", format_duration(now - run.time)))
    return facts


def _told(point: Point) -> dict[str, Any]:
    """Without what is not known, and without numbers that JSON has no word for."""
    told = {**vars(point), "validation": _sayable(point.validation or {})}
    return {name: value for name, value in _sayable(told).items() if value not in (None, "", {})}


def _sayable(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not isinstance(value, float) or math.isfinite(value)}
