"""The size of a model of a given configuration: its parameters, and the FLOPs (floating-point operations) of a token.

Both are counted on a model without memory for its weights (torch's meta device): what an option adds is counted, too.
"""

from __future__ import annotations

import torch
from torch import nn

from niels_gpt.config import ModelConfig
from niels_gpt.model.gpt import GPT


def parameter_count(cfg: ModelConfig) -> int:
    """Trainable numbers, the tied weight counted once."""
    return _without_weights(cfg).parameter_count()


def flops_per_token(cfg: ModelConfig) -> int:
    """Of training, forward and backward: 6 a weight of a linear layer, and attention over half the context."""
    weights = sum(layer.weight.numel() for layer in _without_weights(cfg).modules() if isinstance(layer, nn.Linear))
    return 6 * weights + 6 * cfg.L * cfg.T * cfg.C


def _without_weights(cfg: ModelConfig) -> GPT:
    with torch.device("meta"):
        return GPT(cfg)
