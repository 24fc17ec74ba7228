"""What a finished run tells DVC. Nothing here varies between equal runs: speeds and times go to the run log instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from niels_gpt.config import TrainConfig
from niels_gpt.lr_schedule import lr_at_step
from niels_gpt.train.state import RunState

_CURVE_POINTS = 200


def summarise(run: RunState, cfg: TrainConfig, *, parameters: int, T: int) -> dict[str, Any]:
    """The numbers of metrics/train.json. `p` is what was drawn from, `drawn` what came of it."""
    rows = sum(run.drawn_rows.values())
    return {
        "steps": run.step,
        "tokens": run.step * cfg.B * T,
        "parameters": parameters,
        "loss": _mean(run.losses[-max(1, run.step // _CURVE_POINTS) :]),
        "val_loss": run.validations[-1]["val_loss"],
        "best_val_loss": run.best_val_loss,
        "best_step": run.best_step,
        "mix": {
            name: {"p": p, "rows": run.drawn_rows[name], "drawn": run.drawn_rows[name] / rows}
            for name, p in cfg.p_train.items()
        },
    }


def loss_curve(run: RunState, cfg: TrainConfig) -> list[dict[str, float]]:
    """At most ~200 points, each the mean loss since the one before it."""
    every = max(1, cfg.total_steps // _CURVE_POINTS)
    return [
        {
            "step": min(first + every, run.step),
            "loss": _mean(run.losses[first : first + every]),
            "lr": lr_at_step(
                min(first + every, run.step) - 1,
                cfg.total_steps,
                base_lr=cfg.base_lr,
                warmup_steps=cfg.warmup_steps,
                min_lr=cfg.min_lr,
            ),
        }
        for first in range(0, run.step, every)
    ]


def validations_by_source(run: RunState) -> list[dict[str, float | str]]:
    """Every validation of every source as a row of its own."""
    return [
        {"step": row["step"], "source": name, "loss": loss}
        for row in run.validations
        for name, loss in row.items()
        if name not in ("step", "val_loss")
    ]


def mix_shares(run: RunState, cfg: TrainConfig) -> list[dict[str, float | str]]:
    """What the mix asked for and what was drawn, a row each."""
    rows = sum(run.drawn_rows.values())
    shares = {"asked": cfg.p_train, "drawn": {name: count / rows for name, count in run.drawn_rows.items()}}
    return [{"mix": what, "source": name, "share": share} for what, t in shares.items() for name, share in t.items()]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
