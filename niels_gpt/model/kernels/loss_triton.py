"""Cross-entropy and its gradient on a GPU: each logit is read once and overwritten once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from niels_gpt.model.targets import IGNORE_INDEX

_WHOLE_ROW = 16384  # up to here a row is held in registers, and read once
_BLOCK = 4096  # of a longer one


def supports(logits: torch.Tensor) -> bool:
    return logits.dim() == 2 and logits.is_contiguous()


def losses_and_grad_(logits: torch.Tensor, y: torch.Tensor, cap: float | None) -> torch.Tensor:
    """The loss of each row in float32; the logits (rows, V) become the gradient of their sum. `cap`: see soft_cap."""
    rows, V = logits.shape
    losses = torch.empty(rows, device=logits.device)
    whole = V <= _WHOLE_ROW
    block = triton.next_power_of_2(V) if whole else _BLOCK
    warps = max(1, min(16, block // 512))
    _kernel[(rows,)](
        logits, y, losses, V, IGNORE_INDEX, cap or 1.0,
        BLOCK=block, WHOLE=whole, CAPPED=cap is not None, num_warps=warps,
    )  # fmt: skip
    return losses


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return 1 - 2 / (tl.exp(2 * x) + 1)


@triton.jit
def _kernel(  # type: ignore[no-untyped-def]
    logits, targets, losses, V, ignored, cap,
    BLOCK: tl.constexpr, WHOLE: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    counted = (target != ignored).to(tl.float32)
    target = tl.where(target == ignored, 0, target)
    start = logits + row * V
    chosen = tl.load(start + target).to(tl.float32)
    if CAPPED:
        chosen = cap * _tanh(chosen / cap)
    columns = tl.arange(0, BLOCK)
    if WHOLE:
        x = tl.load(start + columns, mask=columns < V, other=-float("inf"))
        largest = tl.max(x).to(tl.float32)
        if CAPPED:
            bent = _tanh(x.to(tl.float32) / cap)
            largest = tl.max(bent) * cap
            total = tl.sum(tl.where(columns < V, tl.exp(bent * cap - largest), 0.0))
            grad = (tl.exp(bent * cap - largest) * (1 / total) - (columns == target).to(tl.float32)) * counted
            grad *= 1 - bent * bent
        else:
            total = tl.sum(tl.exp(x.to(tl.float32) - largest))
            grad = (tl.exp(x.to(tl.float32) - largest) * (1 / total) - (columns == target).to(tl.float32)) * counted
        tl.store(start + columns, grad.to(logits.dtype.element_ty), mask=columns < V)
    else:
        largest = -float("inf")
        total = 0.0
        for first in range(0, V, BLOCK):
            here = first + columns
            x = tl.load(start + here, mask=here < V, other=-float("inf")).to(tl.float32)
            if CAPPED:
                x = tl.where(here < V, cap * _tanh(x / cap), -float("inf"))
            larger = tl.maximum(largest, tl.max(x))
            total = total * tl.exp(largest - larger) + tl.sum(tl.exp(x - larger))
            largest = larger
        # A second look at the row, which is still in the GPU's cache.
        for first in range(0, V, BLOCK):
            here = first + columns
            x = tl.load(start + here, mask=here < V, other=-float("inf")).to(tl.float32)
            slope = 1.0
            if CAPPED:
                bent = _tanh(x / cap)
                x, slope = cap * bent, 1 - bent * bent
            grad = (tl.exp(x - largest) * (1 / total) - (here == target).to(tl.float32)) * counted * slope
            tl.store(start + here, grad.to(logits.dtype.element_ty), mask=here < V)
    tl.store(losses + row, (tl.log(total) + largest - chosen) * counted)
