"""Causal attention and its gradients on a CPU in float32, a sequence at a time: its scores stay in a core's cache.

torch's fused kernel computes the probabilities again for the gradients, in many small products. Here they are kept, and
products are as large as a sequence allows: an eighth less time at T=256, a quarter at T=512.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from niels_gpt.model import rope

# At most so many queries in one product. Keys behind the last of them are left out: at T=256 a quarter of the work.
_QUERIES = 128
_LEAST_WORK = 1 << 24  # multiplications for a sequence's scores: with fewer, the calls cost what is saved
_LONGEST_T = 512  # what is kept grows with T*T


def supports(qkv: torch.Tensor) -> bool:
    """Whether this is the faster way to attend over qkv (B, T, 3C)."""
    T, C = qkv.shape[1], qkv.shape[2] // 3
    return (
        (qkv.device.type, qkv.dtype) == ("cpu", torch.float32)
        and qkv.requires_grad  # gradients are where the time is saved
        and not torch.compiler.is_compiling()
        and T <= _LONGEST_T
        and T * T * C >= _LEAST_WORK
    )


def rotate_and_attend(qkv: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor, *, H: int) -> torch.Tensor:
    """qkv (B, T, 3C) -> (B, T, C). sin and cos begin at position 0."""
    out: torch.Tensor = _Attention.apply(qkv, sin, cos, H)
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor, H: int) -> torch.Tensor:
        q, k, v = _heads(qkv, 3, H)
        q, k = rope.apply_rope(q, k, sin, cos)
        B, _, T, D = q.shape
        out = qkv.new_empty(B, T, H * D)
        (outs,) = _heads(out, 1, H)
        kept = [q.new_empty(B, H, end - start, end) for start, end in _blocks(T)]
        for (start, end), probabilities in zip(_blocks(T), kept, strict=True):
            future = q.new_full((end - start, end - start), -math.inf).triu(1)
            for p, own, queries, keys, values, o in _sequences(
                probabilities, probabilities[..., start:], q[:, :, start:end], k[:, :, :end].mT, v[:, :, :end],
                outs[:, :, start:end],
            ):  # fmt: skip
                torch.baddbmm(p, queries, keys, beta=0, alpha=1 / math.sqrt(D), out=p)
                own.add_(future)
                torch.softmax(p, dim=-1, out=p)
                torch.bmm(p, values, out=o)
        ctx.save_for_backward(q, k, v, sin, cos, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        q, k, v, sin, cos, *kept = ctx.saved_tensors
        B, H, T, D = q.shape
        (grad_outs,) = _heads(grads[0], 1, H)
        grad = q.new_empty(B, T, 3 * H * D)
        grad_q, grad_k, grad_v = _heads(grad, 3, H)
        # The last queries see every key: their gradients are written, those of the other queries are added to them.
        for (start, end), probabilities in reversed(list(zip(_blocks(T), kept, strict=True))):
            added = 0 if end == T else 1
            grad_scores = q.new_empty(H, end - start, end)
            for p, g, queries, keys, values, to_q, to_k, to_v in _sequences(
                probabilities, grad_outs[:, :, start:end], q[:, :, start:end], k[:, :, :end], v[:, :, :end].mT,
                grad_q[:, :, start:end], grad_k[:, :, :end], grad_v[:, :, :end],
            ):  # fmt: skip
                torch.baddbmm(to_v, p.mT, g, beta=added, out=to_v)
                torch.bmm(g, values, out=grad_scores)
                torch.ops.aten._softmax_backward_data.out(grad_scores, p, -1, p.dtype, grad_input=grad_scores)
                torch.baddbmm(to_q, grad_scores, keys, beta=0, alpha=1 / math.sqrt(D), out=to_q)
                torch.baddbmm(to_k, grad_scores.mT, queries, beta=added, alpha=1 / math.sqrt(D), out=to_k)
        back = torch.complex(cos, -sin)[:, :, :T].transpose(1, 2)
        rope.rotate_(grad[..., : 2 * H * D].unflatten(-1, (2 * H, -1, 2)), back)
        return grad, None, None, None


def _blocks(T: int) -> list[tuple[int, int]]:
    """First query and end of each block; blocks of about the same size."""
    count = -(-T // _QUERIES)
    return [(T * i // count, T * (i + 1) // count) for i in range(count)]


def _heads(x: torch.Tensor, parts: int, H: int) -> list[torch.Tensor]:
    """(B, T, parts*H*D) -> each part's (B, H, T, D)"""
    return [part.unflatten(-1, (H, -1)).transpose(1, 2) for part in x.chunk(parts, dim=-1)]


def _sequences(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    return zip(*(tensor.unbind() for tensor in tensors), strict=True)
