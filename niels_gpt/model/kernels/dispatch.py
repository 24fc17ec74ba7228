"""Kernel selection: the one place that decides which operations a kernel of this project computes."""

from __future__ import annotations

import importlib.util
import math
import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

# Attention in separate steps (scores, softmax, weighted sum), the only form that can show its probabilities.
#
# On a CPU in bf16 it is also the faster one: matrix products, for which the chip has units, take a third of the time of
# torch's fused CPU kernel, forward and backward.

_LONGEST_T = 512  # further on the T*T scores cost too much memory


def supports_unfused(q: torch.Tensor) -> bool:
    """Whether this is the faster way to attend with queries q (B, H, T, D)."""
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[2] <= _LONGEST_T


def attend_unfused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What q sees of v, (B, H, T, D), and the probabilities (B, H, T, T). Without a mask it is the causal one."""
    T = q.shape[2]
    if mask is None:
        mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    hidden = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, float("-inf"))
    scores = q * (1 / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    probabilities = (scores + hidden).softmax(dim=-1)
    return probabilities @ v, probabilities


_ONE_HOT_V = 2048


def supports_embedding(ids: torch.Tensor) -> bool:
    return ids.is_cuda  # a CPU sums in one order by itself


def embed(ids: torch.Tensor, table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """table[ids] in `dtype`."""
    out: torch.Tensor = _Embedding.apply(ids, table, dtype)
    return out


class _Embedding(torch.autograd.Function):
    """For a small vocabulary the gradient is a matrix product with ones and zeros: a tenth of the sort it replaces."""

    @staticmethod
    def forward(ctx: Any, ids: torch.Tensor, table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        ctx.save_for_backward(ids)
        ctx.V = len(table)
        return F.embedding(ids, table).to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        (ids,) = ctx.saved_tensors
        grad = grads[0].flatten(0, -2)
        if ctx.V > _ONE_HOT_V:
            grad_table = torch.ops.aten.embedding_dense_backward(grad.float(), ids.flatten(), ctx.V, -1, False)
            return None, grad_table, None
        chosen = ids.flatten() == torch.arange(ctx.V, device=ids.device)[:, None]  # (V, tokens)
        return None, (chosen.to(grad.dtype) @ grad).float(), None


_ARM = platform.machine().lower() in ("aarch64", "arm64")  # on x86 torch's is vectorised, and twice as fast as this


def supports_gelu(x: torch.Tensor) -> bool:
    trained = torch.is_grad_enabled() and x.requires_grad
    on_cpu = x.device.type == "cpu" and not torch.compiler.is_compiling()
    return _ARM and trained and on_cpu and x.dtype == torch.float32


def gelu_on_cpu(x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _Gelu.apply(x)
    return out


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """x times the normal distribution below x. Its slope (that share, and x times the density) comes with it, of
        the same numbers, and is kept instead of x."""
        share = (x * 0.5**0.5).erf_().add_(1).mul_(0.5)
        out = x * share
        density = x.square().mul_(-0.5).exp_()
        ctx.save_for_backward(share.addcmul_(x, density, value=(2 * math.pi) ** -0.5))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope


# Kernel selection: the one place that decides which operations of the model a kernel of this project computes.
#
# Each function gives the kernel for the tensors at hand, or None: then torch's own operations are taken, which stand
# where the kernel is asked for. What a kernel is for, its module says in `supports`, or this one. Triton's modules are
# imported only for tensors on a GPU: elsewhere Triton need not be installed.

_Kernel = Callable[..., torch.Tensor]
HAS_TRITON = importlib.util.find_spec("triton") is not None


def embedding(ids: torch.Tensor) -> _Kernel | None:
    return embed if supports_embedding(ids) else None


def project_and_rotate(qkv: nn.Linear, x: torch.Tensor) -> Callable[..., tuple[torch.Tensor, ...]] | None:
    if not (_compiled_for_gpu(x) and _has_separate_bias(qkv)):
        return None
    from niels_gpt.model.kernels import training_triton

    return training_triton.project_and_rotate


def attend(q: torch.Tensor, *, return_attn: bool) -> Callable[..., tuple[torch.Tensor, torch.Tensor]] | None:
    return attend_unfused if return_attn or supports_unfused(q) else None


def project_and_gelu(linear: nn.Linear, x: torch.Tensor) -> _Kernel | None:
    if not (_compiled_for_gpu(x) and _has_separate_bias(linear)):
        return None
    from niels_gpt.model.kernels import training_triton

    return training_triton.project_and_gelu


def gelu(x: torch.Tensor) -> _Kernel | None:
    return gelu_on_cpu if supports_gelu(x) else None


def add_and_norm(x: torch.Tensor) -> Callable[..., tuple[torch.Tensor, torch.Tensor]] | None:
    """Without gradients. What is compiled joins more than these two; asking would break its graph."""
    if torch.compiler.is_compiling() or not (x.is_cuda and HAS_TRITON and torch.is_inference_mode_enabled()):
        return None
    from niels_gpt.model.kernels import decoding_triton

    return decoding_triton.add_and_norm


def hashed_noise(keys: torch.Tensor) -> _Kernel | None:
    if not (keys.is_cuda and HAS_TRITON):
        return None
    from niels_gpt.model.kernels import decoding_triton

    return decoding_triton.hashed_noise


def attend_to_cache(heads: torch.Tensor) -> _Kernel | None:
    if not (heads.is_cuda and HAS_TRITON):
        return None
    from niels_gpt.model.kernels import decoding_triton

    return decoding_triton.attend_to_cache


def losses_and_grad_(logits: torch.Tensor) -> _Kernel | None:
    if logits.is_cuda and HAS_TRITON:
        from niels_gpt.model.kernels import training_triton

        if training_triton.supports(logits):
            return training_triton.losses_and_grad_
    return None


def _compiled_for_gpu(x: torch.Tensor) -> bool:
    """Where torch.compile would make kernels of its own, which are slower."""
    return x.is_cuda and torch.compiler.is_compiling()


def _has_separate_bias(linear: nn.Module) -> bool:
    """Whether weight and bias are all there is to it.

    Exactly nn.Linear: a kernel that takes its weight and adds its bias does not call it, and a subclass (quantized, or
    with low-rank adapters) may compute something else.
    """
    return type(linear) is nn.Linear and linear.bias is not None
