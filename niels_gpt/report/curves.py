"""Metrics and learning curves of a finished run, computed from its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from niels_gpt.lr_schedule import scheduled_lr
from niels_gpt.report.history import History

_CURVE_POINTS = 200


def summarise(run: History) -> dict[str, Any]:
    """Return the metrics of a run; losses are in nats/token.

    In `mix`, `p` is a source's sampling probability, and `drawn` its actual share of the sampled rows.
    """
    rows, steps = sum(run.drawn_rows.values()), len(run.losses)
    return {
        "steps": steps,
        "tokens": steps * run.cfg.B * run.T,
        "parameters": run.parameters,
        "loss": _mean(run.losses[-max(1, steps // _CURVE_POINTS) :]),
        "val_loss": run.validations[-1]["val_loss"],
        "best_val_loss": run.best_val_loss,
        "best_step": run.best_step,
        "mix": {
            name: {"p": p, "rows": run.drawn_rows[name], "drawn": run.drawn_rows[name] / rows}
            for name, p in run.cfg.p_train.items()
        },
    }


def loss_curve(run: History) -> list[dict[str, float]]:
    """Return 200 to 399 points (or one per step): the mean loss since the point before, and the learning rate."""
    cfg, steps = run.cfg, len(run.losses)
    every = max(1, cfg.total_steps // _CURVE_POINTS)
    return [
        {
            "step": min(first + every, steps),
            "loss": _mean(run.losses[first : first + every]),
            "lr": scheduled_lr(cfg, min(first + every, steps) - 1),
        }
        for first in range(0, steps, every)
    ]


def validations_by_source(run: History) -> list[dict[str, float | str]]:
    """Return one row per validation and source."""
    return [
        {"step": row["step"], "source": name, "loss": loss}
        for row in run.validations
        for name, loss in row.items()
        if name not in ("step", "val_loss")
    ]


def mix_shares(run: History) -> list[dict[str, float | str]]:
    """Return the configured and the actual share of each source, one row each."""
    rows = sum(run.drawn_rows.values())
    shares = {"asked": run.cfg.p_train, "drawn": {name: count / rows for name, count in run.drawn_rows.items()}}
    return [{"mix": what, "source": name, "share": share} for what, t in shares.items() for name, share in t.items()]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
