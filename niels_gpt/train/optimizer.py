"""Optimizers: AdamW, with rates and decay by group of parameters; or Muon for the matrices inside the blocks."""

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

# In this order, since a saved state has parameters by number, counted through the groups.
_GROUPS = ("embedding", "matrices", "head", "vectors")


class Muon(Optimizer):
    """Momentum (Nesterov's) whose matrices are made orthogonal before they are a step. torch has one that computes in
    bf16 everywhere; where a CPU cannot, torch gives up a library for good at the first product that fails, and the
    float32 products before and after it round differently: two equal runs in one process were not equal."""

    def __init__(self, groups: Sequence[dict[str, Any]], *, momentum: float) -> None:
        """Each group has `params`, matrices all of them, `lr` and `weight_decay`."""
        super().__init__(groups, {"momentum": momentum})

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

    `capturable`: learning rates are tensors on the model's device, which a recorded CUDA graph reads at every step.
    """
    parameters = list(model.named_parameters())
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in parameters:
        groups.setdefault(group_of(name, parameter), {"params": []})["params"].append(parameter)
    for name, group in groups.items():
        device = group["params"][0].device
        group["lr"] = torch.tensor(cfg.base_lr, device=device) if capturable else cfg.base_lr
        group["lr_scale"] = getattr(cfg.lr_scale, name)
        group["weight_decay"] = cfg.weight_decay * getattr(cfg.decay_scale, name)
    by_muon = [groups.pop("matrices")] if cfg.optimizer == "muon" else []
    by_adamw = [groups[name] for name in _GROUPS if name in groups]
    betas = (cfg.beta1, cfg.beta2)
    optimizers: list[Optimizer] = [AdamW(by_adamw, betas=betas, fused=True, capturable=capturable)]
    if by_muon:
        optimizers.append(Muon(by_muon, momentum=0.95))
    return optimizers


def group_of(name: str, parameter: torch.Tensor) -> str:
    """Which of the groups a parameter of a model is in."""
    if parameter.dim() < 2:
        return "vectors"
    if "tok_emb" in name:
        return "embedding"
    return "head" if "lm_head" in name else "matrices"


def set_lr(optimizers: Sequence[Optimizer], lr: float) -> None:
    """To each group its multiple of the rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            _set(group, "lr", lr * group.get("lr_scale", 1.0))


def _set(group: dict[str, Any], key: str, value: float) -> None:
    if isinstance(group[key], torch.Tensor):
        group[key].fill_(value)
    else:
        group[key] = value


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
