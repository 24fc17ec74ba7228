"""One training run as a process: it owns its folder, goes on where it stopped, and can be stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from niels_gpt.config import TrainConfig
from niels_gpt.files.progress import progress
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import settle_bf16
from niels_gpt.train.execution import Execution
from niels_gpt.train.log import RunLog
from niels_gpt.train.loop import Hooks, train
from niels_gpt.train.speed import matmul_flops
from niels_gpt.train.state import RunFolder, RunState, prune_runs
from niels_gpt.train.task import Task

# Runs whose state is kept for another try, this one included: the newest, by use.
KEEP_RUNS = 3


@dataclass(frozen=True)
class RunSettings:
    """How a run is executed. Nothing here changes a number."""

    title: str
    folder: Path
    log: Path
    log_every: int
    checkpoint_every: int
    decode: Callable[[Sequence[int]], str]  # ids of a sample, to be shown


def run_training(model: GPT, task: Task, cfg: TrainConfig, *, execution: Execution, settings: RunSettings) -> RunState:
    """Train to the end, or until Ctrl-C or SIGTERM; what comes back is saved, and says by its step which it was."""
    should_stop = stop_on_signal()
    if cfg.precision == "bf16":
        settle_bf16(execution.device, say=execution.say)  # now: the machine's rate is measured before the first step
    if not execution.ranks.first:
        state = execution.ranks.from_first(None)
        return train(model, task, cfg, state=state, hooks=_same_pace(settings, should_stop), execution=execution)
    folder = RunFolder(settings.folder)
    with folder.locked():
        prune_runs(folder.path.parent, keep=KEEP_RUNS)
        state = execution.ranks.from_first(folder.load(execution.device))
        done = 0 if state is None else state.step
        if done:
            print(f"going on after step {done} from {folder.path}", flush=True)
        with progress(total=cfg.total_steps, initial=done, unit="step", title=settings.title) as bar:
            hooks = replace(
                _same_pace(settings, should_stop),
                step=bar.update,
                report=RunLog(settings.log, total_steps=cfg.total_steps, decode=settings.decode),
                save=folder.save,
                matmul_flops=matmul_flops(execution.device, cfg.precision) if done < cfg.total_steps else None,
            )
            return train(model, task, cfg, state=state, hooks=hooks, execution=execution)


def _same_pace(settings: RunSettings, should_stop: Callable[[], bool]) -> Hooks:
    """What all ranks must agree on, since they exchange losses whenever one is reported."""
    return Hooks(should_stop=should_stop, log_every=settings.log_every, checkpoint_every=settings.checkpoint_every)


def stop_on_signal() -> Callable[[], bool]:
    """True from the first Ctrl-C or SIGTERM on: the loop ends its step and saves. A second Ctrl-C is a plain one."""
    received: list[int] = []

    def handle(signum: int, _: object) -> None:
        received.append(signum)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return lambda: bool(received)
