"""The training loop. Step n is a function of the state before it and of (seed, n), so a run can stop at any step."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from niels_gpt.config import TrainConfig
from niels_gpt.loss import loss_fn
from niels_gpt.lr_schedule import lr_at_step
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import derive_seed, set_seed
from niels_gpt.train.optimizer import build_optimizer
from niels_gpt.train.state import RunState
from niels_gpt.train.task import Task


@dataclass(frozen=True)
class StepReport:
    """What a log line tells."""

    step: int
    loss: float
    lr: float
    tokens_per_second: float
    drawn_rows: Mapping[str, int]
    val_loss: float | None = None


@dataclass(frozen=True)
class Hooks:
    """What the loop asks of its surroundings; none of it changes a number."""

    step: Callable[[int], object] = lambda steps: None
    report: Callable[[StepReport], None] = lambda report: None
    save: Callable[[RunState], None] = lambda state: None
    should_stop: Callable[[], bool] = lambda: False
    log_every: int = 50
    checkpoint_every: int = 200


def train(
    model: GPT,
    task: Task,
    cfg: TrainConfig,
    *,
    state: RunState | None = None,
    hooks: Hooks | None = None,
) -> RunState:
    """Train from `state` (or from the model as it is) to cfg.total_steps, or until hooks.should_stop.

    The result has been through hooks.save.
    """
    hooks = hooks or Hooks()
    T = model.cfg.T
    optimizer = build_optimizer(model, cfg)
    if state is None:
        run = RunState(step=0, model={}, optimizer={}, drawn_rows=dict.fromkeys(task.sources, 0))
    else:
        run = state
        model.load_state_dict(run.model)
        optimizer.load_state_dict(run.optimizer)
    clock, clock_step = time.perf_counter(), run.step
    while run.step < cfg.total_steps and not hooks.should_stop():
        n = run.step
        lr = lr_at_step(n, cfg.total_steps, base_lr=cfg.base_lr, warmup_steps=cfg.warmup_steps, min_lr=cfg.min_lr)
        batch = task.batch(n)
        loss = _step(model, optimizer, batch.x, batch.y, lr=lr, cfg=cfg, n=n)
        run.step = n + 1
        hooks.step(1)
        run.losses.append(loss)
        for name, rows in batch.rows.items():
            run.drawn_rows[name] += rows
        val_loss = None
        if run.step % cfg.eval_every == 0 or run.step == cfg.total_steps:
            val_loss = _validate(model, task, run)
        if val_loss is not None or run.step % hooks.log_every == 0:
            now = time.perf_counter()
            speed = (run.step - clock_step) * cfg.B * T / (now - clock)
            hooks.report(StepReport(run.step, loss, lr, speed, dict(run.drawn_rows), val_loss))
            clock, clock_step = time.perf_counter(), run.step
        if run.step % hooks.checkpoint_every == 0 and run.step < cfg.total_steps:
            hooks.save(_capture(run, model, optimizer))
    hooks.save(_capture(run, model, optimizer))
    return run


def _step(
    model: GPT,
    optimizer: torch.optim.Optimizer,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    lr: float,
    cfg: TrainConfig,
    n: int,
) -> float:
    for group in optimizer.param_groups:
        group["lr"] = lr
    set_seed(derive_seed(cfg.seed, "dropout", n))
    model.train()
    loss = loss_fn(model(x), y)
    value = float(loss.detach())
    if not math.isfinite(value):
        raise ValueError(
            f"the loss became {value} at step {n} with lr {lr:.3g}: lower train.base_lr or lengthen the warm-up "
            "(the last checkpoint before it is kept)"
        )
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip)
    optimizer.step()
    return value


def _validate(model: GPT, task: Task, run: RunState) -> float:
    losses = task.validate(model)
    val_loss = losses["val_loss"]
    run.validations.append({"step": run.step, **losses})
    if run.best_val_loss is None or val_loss < run.best_val_loss:
        run.best_val_loss, run.best_step = val_loss, run.step
        run.best_model = copy.deepcopy(model.state_dict())
    return val_loss


def _capture(run: RunState, model: GPT, optimizer: torch.optim.Optimizer) -> RunState:
    state: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    run.model, run.optimizer = state["model"], state["optimizer"]
    return run
