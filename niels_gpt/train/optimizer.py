"""Optimizers: AdamW, with weight decay on matrices and not on biases and norms; or Muon for the matrices."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from niels_gpt.config import TrainConfig

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients that lift small singular values fastest
_NEWTON_SCHULZ_STEPS = 5


class Muon(Optimizer):
    """Momentum (Nesterov's) whose matrices are made orthogonal before they are a step. torch has one that computes in
    bf16 everywhere; where a CPU cannot, torch gives up a library for good at the first product that fails, and the
    float32 products before and after it round differently: two equal runs in one process were not equal."""

    def __init__(self, params: Sequence[torch.Tensor], *, lr: float, weight_decay: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(p.grad)
                mean = state["momentum_buffer"].lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(mean, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                # Updates of the size AdamW's have, so that one learning rate and one decay serve both.
                p.add_(update, alpha=-group["lr"] * 0.2 * max(p.shape) ** 0.5)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with its singular values brought near 1, by Newton and Schulz; on a GPU in bf16, which is enough."""
    a, b, c = _NEWTON_SCHULZ
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide.bfloat16() if matrix.is_cuda else wide.float()
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide is matrix else x.T


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
        matrices = [p for name, p in parameters if name in by_muon]
        optimizers.append(Muon(matrices, lr=cfg.base_lr, weight_decay=cfg.weight_decay, momentum=0.95))
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
