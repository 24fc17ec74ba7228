"""Kernel selection: the one place that decides which operations of the model a kernel of this project computes.

Each function gives the kernel for the tensors at hand, or None: then torch's own operations are taken, which stand
where the kernel is asked for. What a kernel is for, its module says in `supports`, or this one. Triton's modules are
imported only for tensors on a GPU: elsewhere Triton need not be installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch import nn

from niels_gpt.model.kernels import attention_unfused, embedding_gpu, gelu_cpu

_Kernel = Callable[..., torch.Tensor]
HAS_TRITON = importlib.util.find_spec("triton") is not None


def embedding(ids: torch.Tensor) -> _Kernel | None:
    return embedding_gpu.embed if embedding_gpu.supports(ids) else None


def project_and_rotate(qkv: nn.Linear, x: torch.Tensor) -> Callable[..., tuple[torch.Tensor, ...]] | None:
    if not (_compiled_for_gpu(x) and _has_separate_bias(qkv)):
        return None
    from niels_gpt.model.kernels import rope_triton

    return rope_triton.project_and_rotate


def attend(q: torch.Tensor, *, return_attn: bool) -> Callable[..., tuple[torch.Tensor, torch.Tensor]] | None:
    return attention_unfused.attend if return_attn or attention_unfused.supports(q) else None


def project_and_gelu(linear: nn.Linear, x: torch.Tensor) -> _Kernel | None:
    if not (_compiled_for_gpu(x) and _has_separate_bias(linear)):
        return None
    from niels_gpt.model.kernels import gelu_triton

    return gelu_triton.project_and_gelu


def gelu(x: torch.Tensor) -> _Kernel | None:
    return gelu_cpu.gelu if gelu_cpu.supports(x) else None


def add_and_norm(x: torch.Tensor) -> Callable[..., tuple[torch.Tensor, torch.Tensor]] | None:
    """Without gradients. What is compiled joins more than these two; asking would break its graph."""
    if torch.compiler.is_compiling() or not (x.is_cuda and HAS_TRITON and torch.is_inference_mode_enabled()):
        return None
    from niels_gpt.model.kernels import norm_triton

    return norm_triton.add_and_norm


def hashed_noise(keys: torch.Tensor) -> _Kernel | None:
    if not (keys.is_cuda and HAS_TRITON):
        return None
    from niels_gpt.model.kernels import noise_triton

    return noise_triton.hashed_noise


def attend_to_cache(heads: torch.Tensor) -> _Kernel | None:
    if not (heads.is_cuda and HAS_TRITON):
        return None
    from niels_gpt.model.kernels import decode_triton

    return decode_triton.attend_to_cache


def losses_and_grad_(logits: torch.Tensor) -> _Kernel | None:
    if logits.is_cuda and HAS_TRITON:
        from niels_gpt.model.kernels import loss_triton

        if loss_triton.supports(logits):
            return loss_triton.losses_and_grad_
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
