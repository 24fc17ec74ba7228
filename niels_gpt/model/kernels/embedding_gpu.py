"""Embedding on a GPU: its gradient is summed in the same order every time."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

_ONE_HOT_V = 2048


def supports(ids: torch.Tensor) -> bool:
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
