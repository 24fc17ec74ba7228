"""One training run as a process: it owns its folder, goes on where it stopped, and can be stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from niels_gpt.config import TrainConfig
from niels_gpt.model.gpt import GPT
from niels_gpt.progress import progress
from niels_gpt.train.log import RunLog
from niels_gpt.train.loop import Hooks, train
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


def run_training(
    model: GPT,
    task: Task,
    cfg: TrainConfig,
    *,
    device: str,
    settings: RunSettings,
) -> RunState:
    """Train to the end, or until Ctrl-C or SIGTERM; what comes back is saved, and says by its step which it was."""
    folder = RunFolder(settings.folder)
    with folder.locked():
        prune_runs(folder.path.parent, keep=KEEP_RUNS)
        state = folder.load(device)
        done = 0 if state is None else state.step
        if done:
            print(f"going on after step {done} from {folder.path}", flush=True)
        with progress(total=cfg.total_steps, initial=done, unit="step", title=settings.title) as bar:
            hooks = Hooks(
                step=bar.update,
                report=RunLog(settings.log, total_steps=cfg.total_steps),
                save=folder.save,
                should_stop=stop_on_signal(),
                log_every=settings.log_every,
                checkpoint_every=settings.checkpoint_every,
            )
            return train(model, task, cfg, state=state, hooks=hooks)


def stop_on_signal() -> Callable[[], bool]:
    """True from the first Ctrl-C or SIGTERM on: the loop ends its step and saves. A second Ctrl-C is a plain one."""
    received: list[int] = []

    def handle(signum: int, _: object) -> None:
        received.append(signum)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return lambda: bool(received)
