"""Kernel selection for the model's operations, and the kernels that need no Triton."""

import importlib.util
import math
import platform
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def faster_unfused(q: torch.Tensor) -> bool:
    """Return whether `attend_unfused` is the faster attention for queries q (B, H, T, D).

    On a CPU in bf16 matrix products, for which the chip has units, take a third of the time of torch's fused kernel,
    forward and backward. Beyond 512 tokens the T*T scores cost too much memory.
    """
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[2] <= 512


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


class Embedding(torch.autograd.Function):
    """Embedding for a GPU, whose gradient is the same to the bit in every run.

    Up to a vocabulary of 2,048 it is a product with a one-hot matrix, in a tenth of the time of the sort it replaces.
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
        if ctx.V > 2048:
            grad_table = torch.ops.aten.embedding_dense_backward(grad.float(), ids.flatten(), ctx.V, -1, False)
            return None, grad_table, None
        chosen = ids.flatten() == torch.arange(ctx.V, device=ids.device)[:, None]  # (V, tokens)
        return None, (chosen.to(grad.dtype) @ grad).float(), None


_ARM = platform.machine().lower() in ("aarch64", "arm64")  # on x86 torch's GELU is vectorized, twice as fast as ours


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return the exact (erf) GELU of x; this project's own is faster in float32 training on ARM, uncompiled."""
    trained = torch.is_grad_enabled() and x.requires_grad
    on_cpu = x.device.type == "cpu" and not torch.compiler.is_compiling()
    own = _ARM and trained and on_cpu and x.dtype == torch.float32
    return Gelu.apply(x) if own else F.gelu(x)


class Gelu(torch.autograd.Function):
    """Exact GELU of x."""

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


# The Triton modules, with kernels for the given tensor, or None: the caller then uses torch's own operations. They are
# imported only for tensors on a GPU, so Triton need not be installed elsewhere.

HAS_TRITON = importlib.util.find_spec("triton") is not None


def training_kernels(linear: nn.Module, x: torch.Tensor) -> Any:
    """Return the kernels that compute linear(x) and what follows it, where torch.compile generates slower ones.

    They use the weight and bias without calling `linear`, so it must be exactly an nn.Linear: a subclass (quantized, or
    with low-rank adapters) may compute something else.
    """
    if not (_compiled_for_gpu(x) and type(linear) is nn.Linear and linear.bias is not None):
        return None
    from niels_gpt.model.kernels import training_triton

    return training_triton


def _compiled_for_gpu(x: torch.Tensor) -> bool:
    return x.is_cuda and torch.compiler.is_compiling()


def loss_kernels(logits: torch.Tensor) -> Any:
    """Return the kernels of cross-entropy and its gradient."""
    if not (logits.is_cuda and HAS_TRITON):
        return None
    from niels_gpt.model.kernels import training_triton

    return training_triton


def decoding_kernels(x: torch.Tensor) -> Any:
    """Return the kernels of inference."""
    if not (x.is_cuda and HAS_TRITON):
        return None
    from niels_gpt.model.kernels import decoding_triton

    return decoding_triton


def norm_kernels(x: torch.Tensor) -> Any:
    """Return the kernels of inference, if they compute the sum and norm of a residual stream x.

    None while compiling: torch.compile fuses more than these two, and calling the kernel would break its graph.
    """
    usable = x.is_cuda and torch.is_inference_mode_enabled() and not torch.compiler.is_compiling()
    return decoding_kernels(x) if usable else None
