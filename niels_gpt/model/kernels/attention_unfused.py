"""Attention in separate steps (scores, softmax, weighted sum), the only form that can show its probabilities.

On a CPU in bf16 it is also the faster one: matrix products, for which the chip has units, take a third of the time of
torch's fused CPU kernel, forward and backward.
"""

from __future__ import annotations

import math

import torch

_LONGEST_T = 512  # further on the T*T scores cost too much memory


def supports(q: torch.Tensor) -> bool:
    """Whether this is the faster way to attend with queries q (B, H, T, D)."""
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[2] <= _LONGEST_T


def attend(
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
