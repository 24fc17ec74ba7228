"""What the training stages share: from a task to models/NAME and metrics/NAME.*, in one process or in several."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from niels_gpt.checkpoint import save_checkpoint
from niels_gpt.config import Renderer, TrainConfig, to_dict
from niels_gpt.files.atomic import write_json
from niels_gpt.files.tsv import write_tsv
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline.params import Schedule
from niels_gpt.pipeline.stage import Stage, project_root
from niels_gpt.report.samples import format_samples
from niels_gpt.tokenizer.vocabulary import Tokenizer
from niels_gpt.train.execution import Execution
from niels_gpt.train.metrics import loss_curve, mix_shares, summarise, validations_by_source
from niels_gpt.train.ranks import joined_ranks
from niels_gpt.train.run import RunSettings, run_training
from niels_gpt.train.state import RunFolder, RunState
from niels_gpt.train.task import Task


def train_config(settings: Schedule, *, p_train: Mapping[str, float], p_val: Mapping[str, float]) -> TrainConfig:
    return TrainConfig(p_train=p_train, p_val=p_val, **settings.model_dump())


def trained_by_ranks(stage: Stage) -> bool:
    """With runtime.nproc above 1: start so many processes of this stage, of which the first writes everything."""
    nproc = stage.params.runtime.nproc
    if nproc == 1 or "RANK" in os.environ:
        return False
    threads = str(stage.params.runtime.threads or max(1, (os.cpu_count() or 1) // nproc))
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}", "-m", f"stages.{stage.name}"]
    done = subprocess.run([sys.executable, *launch], env={**os.environ, "OMP_NUM_THREADS": threads}, check=False)
    if done.returncode:
        raise RuntimeError(f"one of {nproc} processes failed; what it said stands above")
    return True


def train_and_write(
    stage: Stage,
    model: GPT,
    task: Task,
    cfg: TrainConfig,
    *,
    tokenizer: Tokenizer,
    device: str,
    out: str,
    renderer: Renderer = "transcript",
) -> bool:
    """Train, or go on training; then write `out`, metrics/<stage>.json, curves and samples. `renderer`:
    how chats are to be put to this model.

    False in a process that only helps: of several, the first one writes.
    """
    runtime = stage.params.runtime
    with joined_ranks(device) as ranks:
        execution = Execution(
            device=device,
            compile=runtime.compile,
            micro_batch_tokens=runtime.micro_batch_tokens,
            deterministic=runtime.deterministic,
            ranks=ranks,
            say=stage.say if ranks.first else lambda text: None,
        )
        if ranks.first:
            among = f" in each of {ranks.size} processes" if ranks.size > 1 else ""
            stage.say(f"{model.parameter_count():,} parameters on {device}{among}, {cfg.B * task.T:,} tokens a step")
            stage.say("drawing " + ", ".join(f"{name} {p:.4f}" for name, p in cfg.p_train.items()))
        settings = RunSettings(
            title=stage.name,
            folder=project_root() / "checkpoints" / stage.inputs.fingerprint(),
            log=project_root() / f"logs/{stage.name}.jsonl",
            log_every=runtime.log_every,
            checkpoint_every=runtime.checkpoint_every,
            decode=tokenizer.decode,
        )
        run = run_training(model, task, cfg, execution=execution, settings=settings)
    if run.step < cfg.total_steps:
        if ranks.first:
            stage.say(f"stopped and saved after step {run.step} of {cfg.total_steps}; `dvc repro` goes on from there")
        sys.exit(130)
    if not ranks.first:
        return False
    _write_model(stage.out(out), model, run, renderer=renderer)
    summary = summarise(run, cfg, parameters=model.parameter_count(), T=task.T)
    write_json(stage.out(f"metrics/{stage.name}.json"), summary)
    write_tsv(stage.out(f"metrics/{stage.name}.tsv"), loss_curve(run, cfg))
    write_tsv(stage.out(f"metrics/{stage.name}_val.tsv"), run.validations)
    write_tsv(stage.out(f"metrics/{stage.name}_sources.tsv"), validations_by_source(run))
    write_tsv(stage.out(f"metrics/{stage.name}_mix.tsv"), mix_shares(run, cfg))
    samples = [(f"step {sample['step']}", tokenizer.decode(sample["ids"])) for sample in run.samples]
    page = format_samples({"What the model wrote at each validation": samples})
    stage.out(f"metrics/{stage.name}_samples.md").write_text(page, encoding="utf-8")
    RunFolder(settings.folder).finish()
    return True


def _write_model(folder: Path, model: GPT, run: RunState, *, renderer: Renderer) -> None:
    """last.pt and best.pt (by val_loss), without optimizer state, and config.json, which also names the renderer."""
    assert run.best_model is not None, "a finished run has been validated"
    assert run.best_step is not None
    save_checkpoint(folder / "last.pt", model, None, run.step, to_dict(model.cfg))
    model.load_state_dict(run.best_model)
    save_checkpoint(folder / "best.pt", model, None, run.best_step, to_dict(model.cfg))
    write_json(folder / "config.json", {**to_dict(model.cfg), "renderer": renderer})
