"""The size of a model of a given configuration: its parameters, and the FLOPs (floating-point operations) of a token.

Both are counted on a model without memory for its weights (torch's meta device): what an option adds is counted, too.
"""

from __future__ import annotations

import torch

from niels_gpt.config import ModelConfig
from niels_gpt.model.gpt import GPT


def parameter_count(cfg: ModelConfig) -> int:
    """Trainable numbers, the tied weight counted once."""
    return _without_weights(cfg).parameter_count()


def flops_per_token(cfg: ModelConfig) -> int:
    """Of training, forward and backward: 6 a weight of a matrix, and attention over half the context on average."""
    weights = sum(p.numel() for p in _without_weights(cfg).parameters() if p.dim() == 2)
    return 6 * weights + 6 * cfg.L * cfg.T * cfg.C


def _without_weights(cfg: ModelConfig) -> GPT:
    with torch.device("meta"):
        return GPT(cfg)
