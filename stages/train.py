"""train: draw from the mix, train, validate; interrupted anywhere, it goes on where it was."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.cache.manifest import open_mix
from niels_gpt.cache.windows import check_lengths
from niels_gpt.data.mix import mix_probabilities
from niels_gpt.device import prepare_device
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.training import train_and_write, train_config, trained_by_ranks
from niels_gpt.rng import derive_seed, set_seed
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.train.task import PretrainTask


def main(stage: Stage) -> None:
    if trained_by_ranks(stage):
        return
    params = stage.params
    p_train = mix_probabilities(params.p_train, params.sources, name="p_train")
    p_val = mix_probabilities(params.p_val, params.sources, name="p_val")
    cfg = train_config(params.train, p_train=p_train, p_val=p_val)
    mix = open_mix("cache/mix.json", root=Path(), documents=params.train.document_mask)
    model_cfg = params.model.config(V=mix.vocab_size)
    train, val = {name: mix.train[name] for name in p_train}, {name: mix.val[name] for name in p_val}
    check_lengths({"train": train, "val": val}, T=model_cfg.T)
    device = prepare_device(params.runtime.device, threads=params.runtime.threads)
    set_seed(derive_seed(cfg.seed, "init"))
    model = GPT(model_cfg).to(device)
    task = PretrainTask(train=train, val=val, cfg=cfg, T=model_cfg.T, device=device)
    tokenizer = load_tokenizer("cache/tokenizer")
    train_and_write(stage, model, task, cfg, tokenizer=tokenizer, device=device, out="models/pretrain")


if __name__ == "__main__":
    run_stage("train", main)
