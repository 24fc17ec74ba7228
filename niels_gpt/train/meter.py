"""Throughput of a run, the machine's peak speed, and the run log."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from niels_gpt.config import TrainConfig
from niels_gpt.files.messages import format_duration, say_above_bar
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import Precision, residual_dtype
from niels_gpt.model.size import flops_per_token
from niels_gpt.train.state import RunState


def matmul_flops(device: str, precision: Precision) -> float:
    """FLOPs a second of a large matrix product here, measured in a fraction of a second."""
    n = 8192 if device.startswith("cuda") else 1024
    a = torch.randn(n, n, device=device, dtype=residual_dtype(precision))

    def seconds(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            product = a @ a
        product[0, 0].item()  # waits for a GPU
        return time.perf_counter() - start

    seconds(2)
    return 2 * n**3 * 5 / seconds(5)


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


def format_report(report: StepReport) -> str:
    rows = sum(report.drawn_rows.values())
    mix = " ".join(f"{name} {count / rows:.3f}" for name, count in report.drawn_rows.items())
    val = "" if report.val_loss is None else f"  val {report.val_loss:.4f}"
    used = "" if report.utilisation is None else f" (MFU {report.utilisation:.0%})"
    return (
        f"step {report.step:>{len(str(report.total_steps))}}/{report.total_steps}  "
        f"loss {report.loss:.4f}{val}  lr {report.lr:.2e}  "
        f"{report.tokens_per_second:,.0f} tok/s{used}  {format_duration(report.seconds_left)} left  drawn: {mix}"
    )


class RunLog:
    """Appends to `path`, so that the parts of an interrupted run stand one after the other.

    Experiments that run at once share the file, so every line names its `run`: the fingerprint of all that decides its
    numbers. `origin` says of what and by what it is trained: the commit, the machine.
    """

    def __init__(
        self,
        path: Path,
        *,
        run: str,
        decode: Callable[[Sequence[int]], str],
        origin: Mapping[str, str] | None = None,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._run, self._decode, self._origin = path, run, decode, origin or {}
        self._before = "\n" if _ends_within_a_line(path) else ""

    def __call__(self, report: StepReport) -> None:
        say_above_bar(format_report(report))
        sample = self._decode(report.sample)
        if sample:
            say_above_bar(f"  writes: {json.dumps(sample, ensure_ascii=False)}")
        with self._path.open("a", encoding="utf-8") as f:
            line = {"run": self._run, "time": round(time.time(), 3), **vars(report), "sample": sample, **self._origin}
            f.write(f"{self._before}{json.dumps(line)}\n")
        self._before = ""


def _ends_within_a_line(path: Path) -> bool:
    """A process was killed as it wrote, or the disk was full."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as f:
        f.seek(-1, os.SEEK_END)
        return f.read() != b"\n"
