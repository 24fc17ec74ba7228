"""Kernel selection for the model's operations, and the kernels that need no Triton."""

from __future__ import annotations

import importlib.util
import math
import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

# Unfused attention (scores, softmax, weighted sum), the only form that can return its probabilities. On a CPU in bf16
# it is also faster: matrix products, for which the chip has units, take a third of the time of torch's fused CPU
# kernel, forward and backward.

_LONGEST_T = 512  # beyond this the T*T scores cost too much memory


def attend_unfused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention output (B, H, T, D) and its probabilities (B, H, T, T); `mask` None is causal."""
    T = q.shape[2]
    k, v = _for_every_query(q, k), _for_every_query(q, v)
    if mask is None:
        mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    hidden = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, float("-inf"))
    scores = q * (1 / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    probabilities = (scores + hidden).softmax(dim=-1)
    return probabilities @ v, probabilities


def attend_fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, *, causal: bool
) -> torch.Tensor:
    """Return torch's own attention of q (B, H, T, D) to k and v (B, K, T', D), K heads that divide H."""
    grouped = q.shape[1] != k.shape[1]
    # Of torch's GPU kernels only flash attention knows groups, and it knows neither masks nor float32.
    if grouped and q.is_cuda and (mask is not None or q.dtype == torch.float32):
        k, v, grouped = _for_every_query(q, k), _for_every_query(q, v), False
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=grouped)


def _for_every_query(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """Return kv (B, K, T, D) with each head repeated for its group of the H heads of q."""
    return kv if q.shape[1] == kv.shape[1] else kv.repeat_interleave(q.shape[1] // kv.shape[1], dim=1)


_ONE_HOT_V = 2048  # largest vocabulary whose embedding gradient is a matrix product


def embed(ids: torch.Tensor, table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return table[ids] in `dtype`, with a gradient that is the same to the bit in every run."""
    out: torch.Tensor = _Embedding.apply(ids, table, dtype)
    return out


class _Embedding(torch.autograd.Function):
    """Embedding whose gradient is, for a small vocabulary, a product with a one-hot matrix.

    That takes a tenth of the time of the sort that it replaces.
    """

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


_ARM = platform.machine().lower() in ("aarch64", "arm64")  # on x86 torch's GELU is vectorized, twice as fast as ours


def gelu_on_cpu(x: torch.Tensor) -> torch.Tensor:
    """Return the exact (erf) GELU of x."""
    out: torch.Tensor = _Gelu.apply(x)
    return out


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return x * Phi(x), saving the derivative Phi(x) + x * phi(x) for backward instead of x."""
        share = (x * 0.5**0.5).erf_().add_(1).mul_(0.5)
        out = x * share
        density = x.square().mul_(-0.5).exp_()
        ctx.save_for_backward(share.addcmul_(x, density, value=(2 * math.pi) ** -0.5))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope


# Kernel selection. Each function returns the kernel for the given tensors, or None: the caller then uses torch's own
# operations. The Triton modules are imported only for tensors on a GPU, so Triton need not be installed elsewhere.

_Kernel = Callable[..., torch.Tensor]
HAS_TRITON = importlib.util.find_spec("triton") is not None


def embedding(ids: torch.Tensor) -> _Kernel | None:
    """Select a kernel for the embedding of ids (B, T), whose gradient is summed in a fixed order."""
    return embed if ids.is_cuda else None  # on a CPU the order is fixed anyway


def project_and_rotate(qkv: nn.Linear, x: torch.Tensor) -> Callable[..., tuple[torch.Tensor, ...]] | None:
    """Select a kernel that projects x (B, T, C) to q, k and v and rotates q and k."""
    if not (_compiled_for_gpu(x) and _has_separate_bias(qkv)):
        return None
    from niels_gpt.model.kernels import training_triton

    return training_triton.project_and_rotate


def attend(q: torch.Tensor, *, return_attn: bool) -> Callable[..., tuple[torch.Tensor, torch.Tensor]] | None:
    """Select an attention kernel for queries q (B, H, T, D); with `return_attn` it must return probabilities."""
    faster = q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[2] <= _LONGEST_T
    return attend_unfused if return_attn or faster else None


def project_and_gelu(linear: nn.Linear, x: torch.Tensor) -> _Kernel | None:
    """Select a kernel for GELU of linear(x)."""
    if not (_compiled_for_gpu(x) and _has_separate_bias(linear)):
        return None
    from niels_gpt.model.kernels import training_triton

    return training_triton.project_and_gelu


def gelu(x: torch.Tensor) -> _Kernel | None:
    """Select a kernel for GELU of x: this project's is faster in float32 training on ARM, uncompiled."""
    trained = torch.is_grad_enabled() and x.requires_grad
    on_cpu = x.device.type == "cpu" and not torch.compiler.is_compiling()
    return gelu_on_cpu if _ARM and trained and on_cpu and x.dtype == torch.float32 else None


def add_and_norm(x: torch.Tensor) -> Callable[..., tuple[torch.Tensor, torch.Tensor]] | None:
    """Select an inference kernel for the sum and norm of a residual stream x.

    None while compiling: torch.compile fuses more than these two, and calling the kernel would break its graph.
    """
    if torch.compiler.is_compiling() or not (x.is_cuda and HAS_TRITON and torch.is_inference_mode_enabled()):
        return None
    from niels_gpt.model.kernels import decoding_triton

    return decoding_triton.add_and_norm


def hashed_noise(keys: torch.Tensor) -> _Kernel | None:
    """Select a kernel for the sampling noise of `keys`."""
    if not (keys.is_cuda and HAS_TRITON):
        return None
    from niels_gpt.model.kernels import decoding_triton

    return decoding_triton.hashed_noise


def attend_to_cache(heads: torch.Tensor) -> _Kernel | None:
    """Select a kernel for the attention of one new token per row to its KV cache."""
    if not (heads.is_cuda and HAS_TRITON):
        return None
    from niels_gpt.model.kernels import decoding_triton

    return decoding_triton.attend_to_cache


def losses_and_grad_(logits: torch.Tensor) -> _Kernel | None:
    """Select a kernel for cross-entropy and its gradient, in place of logits (rows, V)."""
    if logits.is_cuda and HAS_TRITON:
        from niels_gpt.model.kernels import training_triton

        if training_triton.supports(logits):
            return training_triton.losses_and_grad_
    return None


def _compiled_for_gpu(x: torch.Tensor) -> bool:
    """Return whether torch.compile is generating GPU kernels here, which are slower than this project's."""
    return x.is_cuda and torch.compiler.is_compiling()


def _has_separate_bias(linear: nn.Module) -> bool:
    """Return whether this is exactly an nn.Linear, with a bias.

    Kernels use its weight and bias without calling it; a subclass (quantized, or with low-rank adapters) may compute
    something else.
    """
    return type(linear) is nn.Linear and linear.bias is not None
