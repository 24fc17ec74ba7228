"""Optimizers: AdamW, with rates and decay by group of parameters; or Muon for the matrices inside the blocks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from niels_gpt.config import TrainConfig
from niels_gpt.lr_schedule import scheduled_momentum

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients that lift small singular values fastest
_NEWTON_SCHULZ_STEPS = 5

# In this order, since a saved state has parameters by number, counted through the groups.
_GROUPS = ("embedding", "matrices", "head", "vectors")


class _Uncompiled(Optimizer):
    """torch marks these methods as not to be compiled, and imports all of its compiler to say so: 1.6 s of CPU time in
    every process that trains. Here nobody compiles an optimizer, and they go without the mark."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)


class AdamW(_Uncompiled, torch.optim.AdamW):
    """torch's, whose steps have such a mark, too."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class Muon(_Uncompiled):
    """Momentum (Nesterov's) whose matrices are made orthogonal before they are a step. torch has one that computes in
    bf16 everywhere; where a CPU cannot, torch gives up a library for good at the first product that fails, and the
    float32 products before and after it round differently: two equal runs in one process were not equal.

    Matrices of one shape go through it together. Numbers that change from step to step are only multiplied with, so
    that they can be tensors on the device, which a recorded CUDA graph reads."""

    def __init__(self, groups: Sequence[dict[str, Any]]) -> None:
        """Each group has `params`, matrices all of them, `lr`, `weight_decay` and `momentum`."""
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            lr, momentum, params = group["lr"], group["momentum"], group["params"]
            means = {p: self._mean(p) for p in params}
            if group["weight_decay"]:
                torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
            for shape, alike in _by_shape(params).items():
                updates = []
                for parameter in alike:
                    assert parameter.grad is not None
                    mean = means[parameter].lerp_(parameter.grad, 1 - momentum)
                    updates.append(parameter.grad.lerp(mean, momentum))
                # Updates of the size AdamW's have, so that one learning rate and one decay serve both.
                steps = orthogonal(torch.stack(updates)).mul_(lr * (-0.2 * max(shape) ** 0.5))
                torch._foreach_add_(alike, steps.unbind())

    def _mean(self, parameter: torch.Tensor) -> torch.Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        mean: torch.Tensor = state["momentum_buffer"]
        return mean


def _by_shape(params: Sequence[torch.Tensor]) -> dict[torch.Size, list[torch.Tensor]]:
    alike: dict[torch.Size, list[torch.Tensor]] = {}
    for parameter in params:
        alike.setdefault(parameter.shape, []).append(parameter)
    return alike


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Matrices (N, rows, columns) with their singular values brought near 1, by Newton and Schulz; on a GPU in and as
    bf16, which is enough."""
    tall = matrices.shape[1] > matrices.shape[2]
    wide = matrices.mT if tall else matrices
    x = wide.bfloat16() if matrices.is_cuda else wide.float()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    x = _evened_out(x) if matrices.is_cuda else _evened_out_by_gram(x)
    return x.mT if tall else x


def _evened_out(x: torch.Tensor) -> torch.Tensor:
    a, b, c = _NEWTON_SCHULZ
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _evened_out_by_gram(x: torch.Tensor) -> torch.Tensor:
    """The same in two thirds of the arithmetic, but bf16 would be too coarse for it. Each step multiplies x by a
    polynomial of its Gram matrix: the square factors are multiplied with each other, and the wide matrix only once."""
    gram = torch.bmm(x, x.mT)
    product = factor = _polynomial(gram)
    for _ in range(_NEWTON_SCHULZ_STEPS - 1):
        gram = torch.bmm(torch.bmm(factor, gram), factor)
        factor = _polynomial(gram)
        product = torch.bmm(factor, product)
    return torch.bmm(product, x)


def _polynomial(gram: torch.Tensor) -> torch.Tensor:
    a, b, c = _NEWTON_SCHULZ
    factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    factor.diagonal(dim1=1, dim2=2).add_(a)
    return factor


def build_optimizers(model: nn.Module, cfg: TrainConfig, *, capturable: bool = False) -> list[Optimizer]:
    """One AdamW; or Muon for the matrices inside the blocks, and AdamW for the rest.

    `capturable`: what changes from step to step (learning rates, Muon's momentum) are tensors on the model's device,
    which a recorded CUDA graph reads at every step.
    """
    parameters = list(model.named_parameters())
    device = parameters[0][1].device if capturable else None
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in parameters:
        groups.setdefault(group_of(name, parameter), {"params": []})["params"].append(parameter)
    for name, group in groups.items():
        group["lr"] = _number(cfg.base_lr, device)
        group["lr_scale"] = getattr(cfg.lr_scale, name)
        group["weight_decay"] = cfg.weight_decay * getattr(cfg.decay_scale, name)
    by_muon = [groups.pop("matrices")] if cfg.optimizer == "muon" else []
    by_adamw = _joined([groups[name] for name in _GROUPS if name in groups])
    betas = (cfg.beta1, cfg.beta2)
    optimizers: list[Optimizer] = [AdamW(by_adamw, betas=betas, fused=True, capturable=capturable)]
    for group in by_muon:
        group["momentum"] = _number(scheduled_momentum(cfg, 0), device)
        optimizers.append(Muon([group]))
    return optimizers


def _joined(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours of one rate and decay as one group: each has kernels of its own, 3% of a step at v0's size."""
    joined: list[dict[str, Any]] = []
    for group in groups:
        if joined and all(joined[-1][key] == group[key] for key in ("lr_scale", "weight_decay")):
            joined[-1]["params"] += group["params"]
        else:
            joined.append(group)
    return joined


def _number(value: float, device: torch.device | None) -> float | torch.Tensor:
    return value if device is None else torch.tensor(value, device=device)


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


def set_momentum(optimizers: Sequence[Optimizer], momentum: float) -> None:
    """Of Muon; AdamW's betas stay."""
    for optimizer in optimizers:
        if isinstance(optimizer, Muon):
            for group in optimizer.param_groups:
                _set(group, "momentum", momentum)


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
        groups, kept = optimizer.state_dict()["param_groups"], [dict(group) for group in optimizer.param_groups]
        # A copy: an optimizer works on in the very tensors it is given.
        optimizer.load_state_dict({"state": copy.deepcopy(state[str(i)]), "param_groups": groups})
        for group, before in zip(optimizer.param_groups, kept, strict=True):
            group.update(before)  # the very tensors, where rates are tensors


def forget_optimizer_state(optimizers: Sequence[Optimizer]) -> None:
    """As before the first step, in the very tensors."""
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()
