"""Throughput and MFU of a run, the machine's peak FLOP/s, the run log, and progress of models that are used."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from niels_gpt.config import TrainConfig
from niels_gpt.files.messages import format_duration, progress, say_above_bar
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import Precision
from niels_gpt.model.size import flops_per_token
from niels_gpt.train.state import RunState


def matmul_flops(device: str, precision: Precision) -> float:
    """Measure the FLOP/s of a large matrix product on this device; takes a fraction of a second."""
    n = 8192 if device.startswith("cuda") else 1024
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a = torch.randn(n, n, device=device, dtype=dtype)
    for times in (2, 5):  # the first two warm up
        start = time.perf_counter()
        for _ in range(times):
            product = a @ a
        product[0, 0].item()  # synchronizes with the GPU
    return 2 * n**3 * 5 / (time.perf_counter() - start)


@dataclass(frozen=True)
class StepReport:
    """Content of a log line.

    `utilisation` is the MFU, relative to the measured rate of a large matrix product; None if not measured.
    """

    step: int
    total_steps: int
    first_step: int  # steps done before this process started: above 0 in a resumed run
    tokens: int  # trained on so far
    loss: float  # nats/token, of the last step
    lr: float
    tokens_per_second: float
    utilisation: float | None
    seconds_left: float
    asked: Mapping[str, float]  # configured sampling probability of each source
    drawn_rows: Mapping[str, int]  # rows sampled from each source so far
    val_loss: float | None = None
    validation: Mapping[str, float] | None = None  # by source
    sample: tuple[int, ...] = ()  # ids of the prompt and the text sampled after it
    seconds: float = 0.0  # since this process started training


class Meter:
    """Meter of tokens/s since the last report, and of the time left at the average pace since the start."""

    def __init__(self, cfg: TrainConfig, model: GPT, *, T: int, first_step: int, matmul_flops: float | None) -> None:
        self._cfg, self._tokens = cfg, cfg.B * T
        self._flops, self._matmul_flops = flops_per_token(model, T=T), matmul_flops
        self._first_step, self._step = first_step, first_step
        self._start = self._last = time.perf_counter()
        self._pause = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of a `with` block, such as a validation, from tokens/s."""
        start = time.perf_counter()
        yield
        self._pause += time.perf_counter() - start

    def report(self, run: RunState, *, lr: float, validated: bool) -> StepReport:
        """Return the report of the last step; `validated`: the run was validated at this step."""
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
    """Return a report as one line for the terminal."""
    rows = sum(report.drawn_rows.values())
    mix = " ".join(f"{name} {count / rows:.3f}" for name, count in report.drawn_rows.items())
    val = "" if report.val_loss is None else f"  val {report.val_loss:.4f}"
    used = "" if report.utilisation is None else f" (MFU {report.utilisation:.0%})"
    return (
        f"step {report.step:>{len(str(report.total_steps))}}/{report.total_steps}  "
        f"loss {report.loss:.4f}{val}  lr {report.lr:.2e}  "
        f"{report.tokens_per_second:,.0f} tok/s{used}  {format_duration(report.seconds_left)} left  sampled: {mix}"
    )


@contextmanager
def token_progress(models: Iterable[GPT], *, total: int, title: str) -> Iterator[None]:
    """Show progress while models are used: the tokens that they embed, whoever calls them, of about `total`."""
    with progress(total=max(1, total), unit=" tokens", title=title) as bar, ExitStack() as changed:
        for model in models:
            embed = model.embed

            def counted(x: torch.Tensor, embed: Callable[..., torch.Tensor] = embed, **how: Any) -> torch.Tensor:
                bar.update(x.numel())
                return embed(x, **how)

            setattr(model, "embed", counted)  # noqa: B010  # mypy refuses to assign to a method
            changed.callback(delattr, model, "embed")
        yield


@dataclass(frozen=True)
class RunLog:
    """JSON Lines log of step reports, which also prints them.

    Appends to `path`, so that a resumed run continues its log. Concurrent experiments share the file, so every line has
    the `run`, a fingerprint of everything that determines its results, and the `origin` (such as commit and machine).
    """

    path: Path
    run: str
    decode: Callable[[Sequence[int]], str]
    origin: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, report: StepReport) -> None:
        say_above_bar(format_report(report))
        sample = self.decode(report.sample)
        if sample:
            say_above_bar(f"  sample: {json.dumps(sample, ensure_ascii=False)}")
        line = {"run": self.run, "time": round(time.time(), 3), **vars(report), "sample": sample, **self.origin}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        before = "\n" if _ends_within_a_line(self.path) else ""
        with self.path.open("a", encoding="utf-8") as f:
            f.write(f"{before}{json.dumps(line)}\n")


def _ends_within_a_line(path: Path) -> bool:
    """Return whether the last line is incomplete: its writer was killed, or the disk was full."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as f:
        f.seek(-1, os.SEEK_END)
        return f.read() != b"\n"
