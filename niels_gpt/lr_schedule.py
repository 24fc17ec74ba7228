"""Learning-rate schedule (linear warm-up, optional plateau, cosine or linear decay) and Muon's momentum schedule."""

import math
from typing import Literal

from niels_gpt.config import TrainConfig


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
    """Return the learning rate of `step` in [0, total_steps-1].

    It rises linearly from 0 to base_lr at step `warmup_steps`, stays there for the fraction `flat` of the remaining
    steps, and falls to min_lr at the last step; later steps stay at min_lr. A warm-up may be longer than the run.
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
    """Return the learning rate of a step under a training configuration."""
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
    """Return Muon's momentum at a step: a linear rise over `momentum_warmup` steps, then constant."""
    first, last = 0.85, 0.95
    return last if step >= cfg.momentum_warmup else first + (last - first) * step / cfg.momentum_warmup
