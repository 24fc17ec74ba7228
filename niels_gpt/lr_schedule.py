"""Learning-rate schedule: linear warm-up, then base_lr for a while if asked for, then a cosine or a line to min_lr;
and the schedule of Muon's momentum."""

from __future__ import annotations

import math
from typing import Literal

from niels_gpt.config import TrainConfig

_FIRST_MOMENTUM, _MOMENTUM = 0.85, 0.95


def lr_at_step(
    step: int,
    total_steps: int,
    *,
    base_lr: float = 3e-4,
    warmup_steps: int = 200,
    min_lr: float = 3e-5,
    schedule: Literal["cosine", "linear"] = "cosine",
    flat: float = 0.0,
) -> float:
    """Learning rate of `step` in [0, total_steps-1].

    0 at step 0, base_lr at step == warmup_steps and for the share `flat` of the steps after it, min_lr at the last
    step. A warm-up longer than the run never ends; no combination divides by zero. Steps past the end stay at min_lr.
    """
    if step < warmup_steps:
        return base_lr * step / warmup_steps
    decay_steps = (total_steps - 1) - warmup_steps
    if decay_steps <= 0:
        return base_lr if step <= warmup_steps else min_lr
    progress = min(1.0, (step - warmup_steps) / decay_steps)
    fallen = max(0.0, progress - flat) / (1.0 - flat)
    height = 1.0 - fallen if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * fallen))
    return min_lr + (base_lr - min_lr) * height


def scheduled_lr(cfg: TrainConfig, step: int) -> float:
    """Learning rate of a step of a run."""
    return lr_at_step(
        step,
        cfg.total_steps,
        base_lr=cfg.base_lr,
        warmup_steps=cfg.warmup_steps,
        min_lr=cfg.min_lr,
        schedule=cfg.schedule,
        flat=cfg.flat,
    )


def scheduled_momentum(cfg: TrainConfig, step: int) -> float:
    """Muon's momentum at a step of a run."""
    if step >= cfg.momentum_warmup:
        return _MOMENTUM
    return _FIRST_MOMENTUM + (_MOMENTUM - _FIRST_MOMENTUM) * step / cfg.momentum_warmup
