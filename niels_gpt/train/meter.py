"""Throughput of a run (tokens a second, model FLOPs utilisation, time left), and what a log line tells."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from niels_gpt.config import TrainConfig
from niels_gpt.model.gpt import GPT
from niels_gpt.model.size import flops_per_token
from niels_gpt.train.state import RunState


@dataclass(frozen=True)
class StepReport:
    """What a log line tells. `utilisation` is of the rate of a large matrix product here, where somebody measured."""

    step: int
    total_steps: int
    first_step: int  # that this process began after: above 0 in a run that was resumed
    tokens: int  # trained on so far
    loss: float
    lr: float
    tokens_per_second: float
    utilisation: float | None
    seconds_left: float
    asked: Mapping[str, float]  # the probability that a row is of this source
    drawn_rows: Mapping[str, int]
    val_loss: float | None = None
    validation: Mapping[str, float] | None = None  # by source
    sample: tuple[int, ...] = ()
    seconds: float = 0.0  # since this process began to train


class Meter:
    """Tokens a second since the last report, and the time left at the pace since the start."""

    def __init__(self, cfg: TrainConfig, model: GPT, *, T: int, first_step: int, matmul_flops: float | None) -> None:
        self._cfg, self._tokens = cfg, cfg.B * T
        self._flops, self._matmul_flops = flops_per_token(model, T=T), matmul_flops
        self._first_step, self._step = first_step, first_step
        self._start = self._last = time.perf_counter()
        self._pause = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time that does not count as training: a validation."""
        start = time.perf_counter()
        yield
        self._pause += time.perf_counter() - start

    def report(self, run: RunState, *, lr: float, validated: bool) -> StepReport:
        now = time.perf_counter()
        speed = (run.step - self._step) * self._tokens / max(1e-9, now - self._last - self._pause)
        pace = (now - self._start) / (run.step - self._first_step)
        self._last, self._step, self._pause = now, run.step, 0.0
        losses = dict(run.validations[-1]) if validated else {}
        losses.pop("step", None)
        val_loss = losses.pop("val_loss", None)
        sampled = bool(run.samples) and run.samples[-1]["step"] == run.step
        return StepReport(
            step=run.step,
            total_steps=self._cfg.total_steps,
            first_step=self._first_step,
            tokens=run.step * self._tokens,
            loss=run.losses[-1],
            lr=lr,
            tokens_per_second=speed,
            utilisation=None if self._matmul_flops is None else speed * self._flops / self._matmul_flops,
            seconds_left=pace * (self._cfg.total_steps - run.step),
            asked=dict(self._cfg.p_train),
            drawn_rows=dict(run.drawn_rows),
            val_loss=val_loss,
            validation=losses or None,
            sample=tuple(run.samples[-1]["ids"]) if sampled else (),
            seconds=round(now - self._start, 3),
        )
