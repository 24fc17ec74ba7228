"""The training loop, batch prefetching, and runs that can be stopped and resumed.

Step n is a function of the state before it and of (seed, n), so a run can stop at any step and resume.
"""

import copy
import math
import signal
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from niels_gpt.files.messages import progress
from niels_gpt.generate import generate_ids
from niels_gpt.inference.sampling import Sampling
from niels_gpt.lr_schedule import scheduled_lr
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import computing_in
from niels_gpt.rng import derive_seed, make_generator
from niels_gpt.train.meter import Meter, StepReport, matmul_flops
from niels_gpt.train.state import RunFolder, RunState, prune_runs
from niels_gpt.train.step import PlainStep, build_step
from niels_gpt.train.task import ALL, Batch, Execution, Task


def batches(task: Task, steps: range, *, device: str, rows: slice = ALL) -> Generator[Batch]:
    """Yield these rows of batch n for n in `steps`, in CPU memory.

    For a GPU a thread prefetches them into pinned memory. When training on the CPU, a second thread would only take
    time from the matrix products.
    """
    if not device.startswith("cuda"):
        yield from (task.batch(n, rows) for n in steps)
        return
    thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
    ahead: deque[Future[Batch]] = deque()
    try:
        for n in steps:
            ahead.append(thread.submit(lambda n: task.batch(n, rows).pinned(), n))
            if len(ahead) > 8:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        thread.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Hooks:
    """Callbacks of a run (progress, log lines, checkpoints, stop request) and their intervals in steps.

    None of them changes a result.
    """

    progress: Callable[[int], object] = lambda steps: None
    report: Callable[[StepReport], None] = lambda report: None
    save: Callable[[RunState], None] = lambda state: None
    should_stop: Callable[[], bool] = lambda: False
    log_every: int = 50
    checkpoint_every: int = 200
    matmul_flops: Callable[[], float] | None = None  # measures the machine's peak FLOP/s, for MFU in reports


def train(
    model: GPT,
    task: Task,
    *,
    state: RunState | None = None,
    hooks: Hooks | None = None,
    execution: Execution | None = None,
    teacher: GPT | None = None,
) -> RunState:
    """Train from `state` (or from the model as it is) until the run has ended, or until hooks.should_stop.

    Return the final state, after passing it to hooks.save. All ranks train and validate; the first one reports.
    """
    cfg, hooks, execution = task.cfg, hooks or Hooks(), execution or Execution()
    run = state or RunState(step=0, model={}, optimizer={}, drawn_rows=dict.fromkeys(task.sources, 0))
    if state is not None:
        model.load_state_dict(state.model)
    try:
        step = build_step(model, cfg, execution, state=state.optimizer if state else None, teacher=teacher)
        _run_steps(run, model, task, step=step, hooks=hooks, execution=execution)
    except (RuntimeError, MemoryError) as error:
        # torch has a class for GPUs, but only a message for CPU memory.
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "can't allocate memory" not in str(error):
            raise
        tokens = min(cfg.B * task.T, execution.micro_batch_tokens or cfg.B * task.T)
        raise ValueError(
            f"out of memory with {tokens:,} tokens at once: set runtime.micro_batch_tokens to {max(1, tokens // 2)} "
            "(the batch is then processed in parts, with the same result), or lower B, model.T or model.C"
        ) from error
    return run


def _run_steps(run: RunState, model: GPT, task: Task, *, step: PlainStep, hooks: Hooks, execution: Execution) -> None:
    # Losses of several steps are read from the GPU together, because each read synchronizes. At least every so many
    # steps, to notice a stop request or a loss that is not finite.
    cfg, ranks, read_every = task.cfg, execution.ranks, 20 if execution.cuda else 1
    steps, own_rows = range(run.step, cfg.total_steps), ranks.rows(cfg.B)
    unread: list[torch.Tensor] = []
    rate = hooks.matmul_flops() if hooks.matmul_flops and not run.ended(cfg) else None
    meter = Meter(cfg, model, T=task.T, first_step=run.step, matmul_flops=rate)

    def read_losses() -> None:
        losses = ranks.sum(torch.stack(unread)).tolist() if unread else []
        for n, loss in enumerate(losses, start=run.step - len(losses)):
            if not math.isfinite(loss):
                raise ValueError(
                    f"the loss became {loss} at step {n} with lr {scheduled_lr(cfg, n):.3g}: lower base_lr or lengthen "
                    "the warm-up (the last checkpoint before it is kept); the rows of that batch were "
                    f"{task.describe(n)}"
                )
        run.losses += losses
        unread.clear()

    def save() -> None:
        run.model, run.optimizer = model.state_dict(), step.optimizer_state()
        hooks.save(run)

    stopping = ranks.any(hooks.should_stop(), device=execution.device)
    with closing(batches(task, steps, device=execution.device, rows=own_rows)) as feed:
        while not (run.ended(cfg) or stopping):
            batch = next(feed)
            lr = scheduled_lr(cfg, run.step)
            unread.append(step(batch, lr=lr, n=run.step))
            run.step += 1
            hooks.progress(1)
            for name, rows in batch.rows.items():
                run.drawn_rows[name] += rows
            last = run.step == cfg.total_steps
            validating = last or run.step % cfg.eval_every == 0
            reporting = validating or run.step % hooks.log_every == 0
            saving = not last and run.step % hooks.checkpoint_every == 0
            if reporting or saving or len(unread) == read_every:
                read_losses()
                stopping = ranks.any(hooks.should_stop(), device=execution.device)
            if validating:
                with meter.paused():
                    _validate(model, step, task, run, execution=execution)
            if reporting and ranks.first:
                hooks.report(meter.report(run, lr=lr, validated=validating))
            if saving:
                save()
    read_losses()
    save()


def _validate(model: GPT, step: PlainStep, task: Task, run: RunState, *, execution: Execution) -> None:
    """Validate, sharing the work between ranks; record the losses, maybe a sample, and the best model in `run`.

    Every rank generates the sample itself, which takes no longer than waiting for the first rank.
    """
    cfg = task.cfg
    with computing_in(cfg.precision, execution.device), step.averaged(run.step):
        losses = task.validate(step.validated(model), execution.ranks)
        run.validations.append({"step": run.step, **losses})
        count = len(run.validations)
        # At validations 1, 2, 4, 8, ... and the last: to sample from a small model on a GPU takes longer than to
        # validate it.
        if run.step == cfg.total_steps or count.bit_count() == 1:
            prompt = task.prompt()
            dice = make_generator(derive_seed(cfg.seed, "sample"))
            ids = generate_ids(model, prompt, max_new_tokens=64, sampling=Sampling(), generator=dice)
            run.samples.append({"step": run.step, "prompt": len(prompt), "ids": ids})
        val_loss = losses["val_loss"]
        if run.best_val_loss is None or val_loss < run.best_val_loss:
            run.best_val_loss, run.best_step = val_loss, run.step
            run.best_model = copy.deepcopy(model.state_dict())


def run_training(
    model: GPT,
    task: Task,
    *,
    execution: Execution,
    hooks: Hooks,
    folder: Path,
    title: str,
    record: str = "",
    teacher: GPT | None = None,
) -> RunState:
    """Train, or resume, to the end or until Ctrl-C or SIGTERM; return the state, which is also saved in `folder`.

    A stopped run has not ended (RunState.ended). `hooks` says what to report and how often; progress, checkpoints
    and the stop request are added here. `record`: see RunFolder.finish.
    """
    cfg, hooks = task.cfg, replace(hooks, should_stop=stop_on_signal())
    checkpoints, ranks = RunFolder(folder), execution.ranks
    if not ranks.first:
        state = ranks.from_first(None)
        return train(model, task, state=state, hooks=hooks, execution=execution, teacher=teacher)
    with checkpoints.locked():
        checkpoints.forget_recorded(record)
        prune_runs(folder.parent, keep=3)
        state = ranks.from_first(checkpoints.load())
        done = 0 if state is None else state.step
        if done:
            print(f"resuming after step {done} from {folder}", flush=True)
        with progress(total=cfg.total_steps, initial=done, unit=" steps", title=title) as bar:
            rate = partial(matmul_flops, execution.device, cfg.precision)
            hooks = replace(hooks, progress=bar.update, save=checkpoints.save, matmul_flops=rate)
            return train(model, task, state=state, hooks=hooks, execution=execution, teacher=teacher)


def stop_on_signal() -> Callable[[], bool]:
    """Install signal handlers; return a function that is True after the first Ctrl-C or SIGTERM.

    The loop then finishes its step and saves. A second Ctrl-C raises KeyboardInterrupt.
    """
    received: list[int] = []

    def handle(signum: int, _: object) -> None:
        received.append(signum)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return lambda: bool(received)
