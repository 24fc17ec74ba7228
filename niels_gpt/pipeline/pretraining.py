"""From parameters and caches to what pretraining draws: for the stage that trains, and for looking at its batches."""

from __future__ import annotations

from niels_gpt.cache.manifest import open_mix
from niels_gpt.cache.windows import check_lengths
from niels_gpt.config import ModelConfig
from niels_gpt.data.mix import mix_probabilities
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.places import token_places
from niels_gpt.pipeline.training import train_config
from niels_gpt.train.pretraining import PretrainTask


def open_pretraining(params: Params, *, device: str, ranks: Ranks = ALONE) -> tuple[PretrainTask, ModelConfig]:
    """The task, and the configuration of the model that is trained on it."""
    p_train = mix_probabilities(params.p_train, params.sources, name="p_train")
    p_val = mix_probabilities(params.p_val, params.sources, name="p_val")
    cfg = train_config(params.train, p_train=p_train, p_val=p_val)
    mix = open_mix(layout.MIX, places=token_places(params), documents=params.train.document_mask, ranks=ranks)
    model_cfg = params.model.config(V=mix.vocab_size)
    train, val = {name: mix.train[name] for name in p_train}, {name: mix.val[name] for name in p_val}
    check_lengths({"train": train, "val": val}, T=model_cfg.T)
    return PretrainTask(train=train, val=val, cfg=cfg, T=model_cfg.T, device=device), model_cfg
