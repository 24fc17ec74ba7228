"""Positions of a forward pass: the rotary angles of its tokens, and the attention mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Positions:
    """Rotary angles, (1 or B, 1, T, D/2), and an attention mask: which keys (last dimension) a query may see."""

    sin: torch.Tensor
    cos: torch.Tensor
    mask: torch.Tensor | None  # None: causal, every key up to the query's own


def positions_of(
    *, sin: torch.Tensor, cos: torch.Tensor, position_ids: torch.Tensor | None, segment_ids: torch.Tensor | None
) -> Positions | None:
    """Of tokens at given positions and in given segments, (B, T) each; a segment does not see another.

    None for neither: positions are 0..T-1, and the mask is causal.
    """
    if position_ids is None and segment_ids is None:
        return None
    if position_ids is not None:
        sin, cos = (table[0, 0][position_ids][:, None] for table in (sin, cos))
    mask = None
    if segment_ids is not None:
        T = segment_ids.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool, device=segment_ids.device).tril()
        mask = (causal & (segment_ids[:, :, None] == segment_ids[:, None, :]))[:, None]
    return Positions(sin, cos, mask)
