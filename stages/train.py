"""train: draw from the mix, train, validate; interrupted anywhere, it goes on where it was."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from niels_gpt.atomic import write_json
from niels_gpt.cache.manifest import check_shards, open_split
from niels_gpt.cache.meta import read_meta
from niels_gpt.checkpoint import save_checkpoint
from niels_gpt.config import TrainConfig, to_dict
from niels_gpt.device import resolve_device
from niels_gpt.mix import mix_probabilities
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import derive_seed, set_seed
from niels_gpt.train.log import RunLog
from niels_gpt.train.loop import Hooks, train
from niels_gpt.train.metrics import loss_curve, summarise, write_tsv
from niels_gpt.train.state import RunFolder, RunState, prune_runs
from niels_gpt.windows import check_lengths
from stages.stage import Stage, project_root, run_stage

KEEP_RUNS = 3


def main(stage: Stage) -> None:
    params, runtime = stage.params, stage.params.runtime
    cfg = TrainConfig(
        p_train=mix_probabilities(params.p_train, params.sources, name="p_train"),
        p_val=mix_probabilities(params.p_val, params.sources, name="p_val"),
        **params.train.model_dump(),
    )
    mix = read_meta("cache/mix.json")
    model_cfg = params.model.config(V=mix["vocab_size"])
    check_shards(mix["sources"], root=Path())
    streams = {
        split: {name: open_split(mix["sources"][name], split, root=Path()) for name in p}
        for split, p in (("train", cfg.p_train), ("val", cfg.p_val))
    }
    check_lengths(streams, T=model_cfg.T)
    device = resolve_device(runtime.device)
    if runtime.threads:
        torch.set_num_threads(runtime.threads)
    set_seed(derive_seed(cfg.seed, "init"))
    model = GPT(model_cfg).to(device)
    stage.say(f"{model.parameter_count():,} parameters on {device}, {cfg.B * model_cfg.T:,} tokens a step")
    stage.say("drawing " + ", ".join(f"{name} {p:.4f}" for name, p in cfg.p_train.items()))

    folder = RunFolder(project_root() / "checkpoints" / stage.inputs.fingerprint())
    with folder.locked():
        prune_runs(folder.path.parent, keep=KEEP_RUNS)
        state = folder.load(device)
        if state is not None:
            stage.say(f"going on after step {state.step} from {folder.path}")
        hooks = Hooks(
            report=RunLog(project_root() / "logs/train.jsonl", total_steps=cfg.total_steps),
            save=folder.save,
            should_stop=stop_on_signal(),
            log_every=runtime.log_every,
            checkpoint_every=runtime.checkpoint_every,
        )
        run = train(model, streams["train"], streams["val"], cfg, device=device, state=state, hooks=hooks)
    if run.step < cfg.total_steps:
        stage.say(f"stopped and saved after step {run.step} of {cfg.total_steps}; `dvc repro` goes on from there")
        sys.exit(130)
    write_model(stage, model, run)
    write_json(stage.out("metrics/train.json"), summarise(run, cfg, parameters=model.parameter_count(), T=model_cfg.T))
    write_tsv(stage.out("metrics/train.tsv"), loss_curve(run, cfg))
    write_tsv(stage.out("metrics/val.tsv"), run.validations)


def stop_on_signal() -> Callable[[], bool]:
    """True from the first Ctrl-C or SIGTERM on: the loop ends its step and saves. A second Ctrl-C is a plain one."""
    received: list[int] = []

    def handle(signum: int, _: object) -> None:
        received.append(signum)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return lambda: bool(received)


def write_model(stage: Stage, model: GPT, run: RunState) -> None:
    """best.pt (by val_loss) and last.pt, without optimizer state, and config.json."""
    out = stage.out("models/pretrain")
    config = to_dict(model.cfg)
    save_checkpoint(out / "last.pt", model, None, run.step, config)
    assert run.best_model is not None, "a finished run has been validated"
    assert run.best_step is not None
    model.load_state_dict(run.best_model)
    save_checkpoint(out / "best.pt", model, None, run.best_step, config)


if __name__ == "__main__":
    run_stage("train", main)
