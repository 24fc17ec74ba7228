"""train: draw from the mix, train, validate; interrupted anywhere, it goes on where it was."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from niels_gpt.atomic import write_json
from niels_gpt.cache.manifest import open_mix
from niels_gpt.checkpoint import save_checkpoint
from niels_gpt.config import TrainConfig, to_dict
from niels_gpt.device import resolve_device
from niels_gpt.mix import mix_probabilities
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import derive_seed, set_seed
from niels_gpt.train.metrics import loss_curve, summarise, write_tsv
from niels_gpt.train.run import RunSettings, run_training
from niels_gpt.train.state import RunState
from niels_gpt.windows import check_lengths
from stages.params import Params
from stages.stage import Stage, project_root, run_stage


def main(stage: Stage) -> None:
    runtime, cfg = stage.params.runtime, train_config(stage.params)
    mix = open_mix("cache/mix.json", root=Path())
    train_streams = {name: mix.train[name] for name in cfg.p_train}
    val_streams = {name: mix.val[name] for name in cfg.p_val}
    model_cfg = stage.params.model.config(V=mix.vocab_size)
    check_lengths({"train": train_streams, "val": val_streams}, T=model_cfg.T)
    device = resolve_device(runtime.device)
    if runtime.threads:
        torch.set_num_threads(runtime.threads)
    set_seed(derive_seed(cfg.seed, "init"))
    model = GPT(model_cfg).to(device)
    stage.say(f"{model.parameter_count():,} parameters on {device}, {cfg.B * model_cfg.T:,} tokens a step")
    stage.say("drawing " + ", ".join(f"{name} {p:.4f}" for name, p in cfg.p_train.items()))

    settings = RunSettings(
        folder=project_root() / "checkpoints" / stage.inputs.fingerprint(),
        log=project_root() / "logs/train.jsonl",
        log_every=runtime.log_every,
        checkpoint_every=runtime.checkpoint_every,
    )
    run = run_training(model, train_streams, val_streams, cfg, device=device, settings=settings)
    if run.step < cfg.total_steps:
        stage.say(f"stopped and saved after step {run.step} of {cfg.total_steps}; `dvc repro` goes on from there")
        sys.exit(130)
    write_model(stage.out("models/pretrain"), model, run)
    summary = summarise(run, cfg, parameters=model.parameter_count(), T=model_cfg.T)
    write_json(stage.out("metrics/train.json"), summary)
    write_tsv(stage.out("metrics/train.tsv"), loss_curve(run, cfg))
    write_tsv(stage.out("metrics/val.tsv"), run.validations)


def train_config(params: Params) -> TrainConfig:
    return TrainConfig(
        p_train=mix_probabilities(params.p_train, params.sources, name="p_train"),
        p_val=mix_probabilities(params.p_val, params.sources, name="p_val"),
        **params.train.model_dump(),
    )


def write_model(folder: Path, model: GPT, run: RunState) -> None:
    """last.pt and best.pt (by val_loss), without optimizer state, and config.json."""
    assert run.best_model is not None, "a finished run has been validated"
    assert run.best_step is not None
    save_checkpoint(folder / "last.pt", model, None, run.step, to_dict(model.cfg))
    model.load_state_dict(run.best_model)
    save_checkpoint(folder / "best.pt", model, None, run.best_step, to_dict(model.cfg))


if __name__ == "__main__":
    run_stage("train", main)
