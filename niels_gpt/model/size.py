"""The size of a model: its parameters, and the FLOPs (floating-point operations) of a token. Both are counted, so that
what an option adds is in them, too."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from niels_gpt.config import ModelConfig
from niels_gpt.model.gpt import GPT


def parameter_count(cfg: ModelConfig) -> int:
    """Trainable numbers of a model that is not there yet, the tied weight counted once. No memory is taken for them
    (torch's meta device, with which torch's compiler is imported, 1.6 s of CPU time: whoever has a model asks that).
    Blocks from the second on are alike, so two are enough to count any number of them."""
    with torch.device("meta"):
        one, two = (GPT(replace(cfg, L=L)).parameter_count() for L in (1, 2))
    return one + (cfg.L - 1) * (two - one)


def flops_per_token(model: GPT, *, T: int) -> int:
    """Of training, forward and backward: 6 a weight of a linear layer, and attention over half the context."""
    weights = sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Linear))
    return 6 * weights + 6 * model.cfg.L * T * model.cfg.C
