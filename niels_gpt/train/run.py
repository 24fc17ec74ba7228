"""One training run as a process: it locks its folder of checkpoints, resumes from them, and can be stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from niels_gpt.config import TrainConfig
from niels_gpt.files.progress import progress
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import settle_bf16
from niels_gpt.train.execution import Execution
from niels_gpt.train.loop import Hooks, train
from niels_gpt.train.speed import matmul_flops
from niels_gpt.train.state import RunFolder, RunState, prune_runs
from niels_gpt.train.task import Task

# Runs whose state is kept for another try, this one included: the newest, by use.
KEEP_RUNS = 3


def run_training(
    model: GPT,
    task: Task,
    cfg: TrainConfig,
    *,
    execution: Execution,
    hooks: Hooks,
    folder: Path,
    title: str,
    record: str = "",
) -> RunState:
    """Train to the end, or until Ctrl-C or SIGTERM; what comes back is saved in `folder`, and its step says which.

    `hooks` says how a run is reported and how often; progress, checkpoints and the stop are added here.
    `record`: see RunFolder.finish.
    """
    hooks = replace(hooks, should_stop=stop_on_signal())
    if cfg.precision == "bf16":
        settle_bf16(execution.device, say=execution.say)  # now: the machine's rate is measured before the first step
    checkpoints, ranks = RunFolder(folder), execution.ranks
    if not ranks.first:
        return train(model, task, cfg, state=ranks.from_first(None), hooks=hooks, execution=execution)
    with checkpoints.locked():
        checkpoints.forget_recorded(record)
        prune_runs(folder.parent, keep=KEEP_RUNS)
        state = ranks.from_first(checkpoints.load())
        done = 0 if state is None else state.step
        if done:
            print(f"going on after step {done} from {folder}", flush=True)
        with progress(total=cfg.total_steps, initial=done, unit="step", title=title) as bar:
            rate = matmul_flops(execution.device, cfg.precision) if done < cfg.total_steps else None
            hooks = replace(hooks, progress=bar.update, save=checkpoints.save, matmul_flops=rate)
            return train(model, task, cfg, state=state, hooks=hooks, execution=execution)


def stop_on_signal() -> Callable[[], bool]:
    """True from the first Ctrl-C or SIGTERM on: the loop ends its step and saves. A second Ctrl-C is a plain one."""
    received: list[int] = []

    def handle(signum: int, _: object) -> None:
        received.append(signum)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return lambda: bool(received)
