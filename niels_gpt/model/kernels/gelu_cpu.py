"""GELU on an ARM CPU: its gradient out of vectorised operations, where torch's own goes number by number."""

from __future__ import annotations

import math
import platform
from typing import Any

import torch
from torch.nn import functional as F

_ARM = platform.machine().lower() in ("aarch64", "arm64")  # on x86 torch's is vectorised, and twice as fast as this


def supports(x: torch.Tensor) -> bool:
    trained = torch.is_grad_enabled() and x.requires_grad
    on_cpu = x.device.type == "cpu" and not torch.compiler.is_compiling()
    return _ARM and trained and on_cpu and x.dtype == torch.float32


def gelu(x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _Gelu.apply(x)
    return out


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        """x times the normal distribution below x: that share, and x times its density."""
        (x,) = ctx.saved_tensors
        share = (x * 0.5**0.5).erf_().add_(1).mul_(0.5)
        density = x.square().mul_(-0.5).exp_().mul_((2 * math.pi) ** -0.5)
        return share.addcmul_(x, density).mul_(grads[0])
