"""AdamW, with decay on matrices only: pulling biases and norms towards zero helps nobody. Or Muon for the matrices."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from niels_gpt.config import TrainConfig


def build_optimizers(model: nn.Module, cfg: TrainConfig, *, capturable: bool = False) -> list[Optimizer]:
    """One AdamW; or Muon for the matrices inside the blocks, and AdamW for the rest.

    `capturable`: the learning rate is a tensor on the model's device, which a recorded CUDA graph reads at every step.
    """
    parameters = list(model.named_parameters())
    by_muon = {name for name, p in parameters if cfg.optimizer == "muon" and p.dim() == 2 and "emb" not in name}
    rest = [(name, p) for name, p in parameters if name not in by_muon]
    groups = [
        {"params": [p for _, p in rest if p.dim() >= 2], "weight_decay": cfg.weight_decay},
        {"params": [p for _, p in rest if p.dim() < 2], "weight_decay": 0.0},
    ]
    lr = torch.tensor(cfg.base_lr, device=rest[0][1].device) if capturable else cfg.base_lr
    betas = (cfg.beta1, cfg.beta2)
    optimizers: list[Optimizer] = [AdamW(groups, lr=lr, betas=betas, fused=True, capturable=capturable)]
    if by_muon:
        # Updates of the size AdamW's have, so that one learning rate and one decay serve both.
        matrices = [p for name, p in parameters if name in by_muon]
        muon = Muon(matrices, lr=cfg.base_lr, weight_decay=cfg.weight_decay, adjust_lr_fn="match_rms_adamw")
        optimizers.append(muon)
    return optimizers


def set_lr(optimizers: Sequence[Optimizer], lr: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr


def optimizer_state(optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """Moments and counts of all, by number. Learning rates and the like are the configuration's, not the state's."""
    return {str(i): optimizer.state_dict()["state"] for i, optimizer in enumerate(optimizers)}


def load_optimizer_state(optimizers: Sequence[Optimizer], state: Mapping[str, Any]) -> None:
    for i, optimizer in enumerate(optimizers):
        groups = optimizer.state_dict()["param_groups"]
        lrs = [group["lr"] for group in optimizer.param_groups]
        # A copy: an optimizer works on in the very tensors it is given.
        optimizer.load_state_dict({"state": copy.deepcopy(state[str(i)]), "param_groups": groups})
        for group, lr in zip(optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr  # the very tensor, where it is one
