"""What the training stages share: from a task to models/NAME and metrics/NAME.*."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from niels_gpt.atomic import write_json
from niels_gpt.checkpoint import save_checkpoint
from niels_gpt.config import TrainConfig, to_dict
from niels_gpt.device import resolve_device
from niels_gpt.model.gpt import GPT
from niels_gpt.train.metrics import loss_curve, summarise, write_tsv
from niels_gpt.train.run import RunSettings, run_training
from niels_gpt.train.state import RunState
from niels_gpt.train.task import Task
from stages.params import Runtime, Train
from stages.stage import Stage, project_root


def train_config(settings: Train, *, p_train: Mapping[str, float], p_val: Mapping[str, float]) -> TrainConfig:
    return TrainConfig(p_train=p_train, p_val=p_val, **settings.model_dump())


def prepare_device(runtime: Runtime) -> str:
    if runtime.threads:
        torch.set_num_threads(runtime.threads)
    return resolve_device(runtime.device)


def train_and_write(stage: Stage, model: GPT, task: Task, cfg: TrainConfig, *, device: str, out: str) -> None:
    """Train, or go on training; then publish `out`, metrics/<stage>.json and the two curves."""
    runtime, T = stage.params.runtime, model.cfg.T
    stage.say(f"{model.parameter_count():,} parameters on {device}, {cfg.B * T:,} tokens a step")
    stage.say("drawing " + ", ".join(f"{name} {p:.4f}" for name, p in cfg.p_train.items()))
    settings = RunSettings(
        title=stage.name,
        folder=project_root() / "checkpoints" / stage.inputs.fingerprint(),
        log=project_root() / f"logs/{stage.name}.jsonl",
        log_every=runtime.log_every,
        checkpoint_every=runtime.checkpoint_every,
    )
    run = run_training(model, task, cfg, device=device, settings=settings)
    if run.step < cfg.total_steps:
        stage.say(f"stopped and saved after step {run.step} of {cfg.total_steps}; `dvc repro` goes on from there")
        sys.exit(130)
    _write_model(stage.out(out), model, run)
    summary = summarise(run, cfg, parameters=model.parameter_count(), T=T)
    write_json(stage.out(f"metrics/{stage.name}.json"), summary)
    write_tsv(stage.out(f"metrics/{stage.name}.tsv"), loss_curve(run, cfg))
    write_tsv(stage.out(f"metrics/{stage.name}_val.tsv"), run.validations)


def _write_model(folder: Path, model: GPT, run: RunState) -> None:
    """last.pt and best.pt (by val_loss), without optimizer state, and config.json."""
    assert run.best_model is not None, "a finished run has been validated"
    assert run.best_step is not None
    save_checkpoint(folder / "last.pt", model, None, run.step, to_dict(model.cfg))
    model.load_state_dict(run.best_model)
    save_checkpoint(folder / "best.pt", model, None, run.best_step, to_dict(model.cfg))
