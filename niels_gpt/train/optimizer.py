"""Optimizers: AdamW with learning rates and decay by parameter group, and Muon for the matrices inside the blocks."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from niels_gpt.config import TrainConfig
from niels_gpt.lr_schedule import scheduled_momentum

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Muon's quintic, whose slope at 0 lifts small singular values fastest
_NEWTON_SCHULZ_STEPS = 5

# The order matters: a saved optimizer state numbers the parameters through the groups.
_GROUPS = ("embedding", "matrices", "head", "vectors")


class _Uncompiled(Optimizer):
    """Optimizer base without torch's "do not compile" wrappers.

    The wrappers import torch's compiler, 1.6 s of CPU time in every training process, and this project never compiles
    an optimizer.
    """

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    state_dict = inspect.unwrap(Optimizer.state_dict)


class AdamW(_Uncompiled, torch.optim.AdamW):
    """AdamW of torch without the wrapper around `step`."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class Muon(_Uncompiled):
    """Muon: Nesterov momentum whose update matrices are orthogonalized.

    torch's Muon computes in bf16 everywhere. On a CPU without bf16, torch gives up a library at the first product that
    fails, and float32 products before and after it round differently: two equal runs in one process differed.

    Matrices of one shape are processed together. Numbers that change from step to step (lr, momentum) are only
    multiplied with, so they can be device tensors, which a recorded CUDA graph reads. Groups have `params` (matrices
    only), `lr`, `weight_decay` and `momentum`; there are no defaults.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            lr, momentum, params = group["lr"], group["momentum"], group["params"]
            alike: dict[torch.Size, list[torch.Tensor]] = {}
            for parameter in params:
                alike.setdefault(parameter.shape, []).append(parameter)
                if not self.state[parameter]:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            if group["weight_decay"]:
                torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
            for shape, matrices in alike.items():
                updates = []
                for parameter in matrices:
                    assert parameter.grad is not None
                    mean = self.state[parameter]["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
                    updates.append(parameter.grad.lerp(mean, momentum))
                # 0.2 * sqrt(max(shape)) gives updates the size of AdamW's: one learning rate and decay serve both.
                steps = orthogonal(torch.stack(updates)).mul_(lr * (-0.2 * max(shape) ** 0.5))
                torch._foreach_add_(matrices, steps.unbind())


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Return matrices (N, rows, columns) with all singular values near 1, by Newton-Schulz iteration.

    On a GPU it computes in bf16, which is precise enough, and returns bf16; elsewhere float32.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    wide = matrices.mT if tall else matrices
    x = wide.bfloat16() if matrices.is_cuda else wide.float()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    x = _evened_out(x) if matrices.is_cuda else _evened_out_by_gram(x)
    return x.mT if tall else x


def _evened_out(x: torch.Tensor) -> torch.Tensor:
    """Apply the Newton-Schulz steps x <- a x + b (x x') x + c (x x')^2 x."""
    a, b, c = _NEWTON_SCHULZ
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _evened_out_by_gram(x: torch.Tensor) -> torch.Tensor:
    """Compute the same as `_evened_out` with two thirds of the arithmetic; bf16 would be too coarse for it.

    Each step multiplies x by a polynomial of its Gram matrix. The square factors are multiplied with each other, and
    with the wide matrix only once.
    """
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
    """Return [AdamW], or [AdamW, Muon] with Muon for the matrices inside the blocks; frozen weights are in neither.

    `capturable`: learning rates and Muon's momentum are tensors on the model's device, which a recorded CUDA graph
    reads at every step.
    """
    number: Callable[[float], Any] = float
    if capturable:
        number = partial(torch.tensor, device=next(model.parameters()).device)
    parameters: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameters.setdefault(group_of(name, parameter), []).append(parameter)

    def scales(name: str) -> dict[str, float]:
        decay = cfg.weight_decay * getattr(cfg.decay_scale, name)
        return {"lr_scale": getattr(cfg.lr_scale, name), "weight_decay": decay}

    def groups(names: Sequence[str]) -> list[dict[str, Any]]:
        # Adjacent ones of equal rate and decay are one: each launches its own kernels, 3% of a step at v0's size.
        return [
            {"params": [p for name in alike for p in parameters[name]], "lr": number(cfg.base_lr), **shared}
            for shared, alike in groupby(names, key=scales)
        ]

    by_muon = ["matrices"] if cfg.optimizer == "muon" else []
    by_adamw = [name for name in _GROUPS if name in parameters and name not in by_muon]
    adamw = AdamW(groups(by_adamw), betas=(cfg.beta1, cfg.beta2), fused=True, capturable=capturable)
    momentum = {"momentum": number(scheduled_momentum(cfg, 0))}
    return [adamw, *(Muon([group | momentum], defaults={}) for group in groups(by_muon))]


def group_of(name: str, parameter: torch.Tensor) -> str:
    """Return the name of the group that a parameter belongs to: embedding, matrices, head or vectors."""
    if parameter.dim() < 2:
        return "vectors"
    if "tok_emb" in name:
        return "embedding"
    return "head" if "lm_head" in name else "matrices"


def set_rates(optimizers: Sequence[Optimizer], *, lr: float, momentum: float) -> None:
    """Set each group's learning rate to lr times its `lr_scale`, and Muon's momentum; AdamW's betas stay."""
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        for name, value in (("lr", lr * group.get("lr_scale", 1.0)), ("momentum", momentum)):
            if isinstance(group.get(name), torch.Tensor):
                group[name].fill_(value)
            elif name in group:
                group[name] = value


def optimizer_state(optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """Return the moments and step counts of all optimizers, by number.

    Learning rates and the like belong to the configuration, not to the state.
    """
    return {str(i): optimizer.state_dict()["state"] for i, optimizer in enumerate(optimizers)}


def load_optimizer_state(optimizers: Sequence[Optimizer], state: Mapping[str, Any] | None) -> None:
    """Load what `optimizer_state` returned; None zeroes the state, in place."""
    for i, optimizer in enumerate(optimizers):
        if state is None:
            for value in (value for moments in optimizer.state.values() for value in moments.values()):
                value.zero_()
            continue
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for number, moments in state[str(i)].items():
            # Copied, because an optimizer updates its tensors in place.
            copies = {name: value.to(parameters[number].device, copy=True) for name, value in moments.items()}
            optimizer.state[parameters[number]] = copies
