"""AdamW, with decay on matrices only: pulling biases and norms towards zero helps nobody."""

from __future__ import annotations

import torch
from torch import nn

from niels_gpt.config import TrainConfig


def build_optimizer(model: nn.Module, cfg: TrainConfig) -> torch.optim.AdamW:
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": cfg.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=cfg.base_lr, betas=(cfg.beta1, cfg.beta2), fused=True)
