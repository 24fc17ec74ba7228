"""Where the tokens of a forward stand, and what each may look at. Left out, they stand at 0..T-1 and look back."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Places:
    """Rotations of the positions, (1 or B, 1, T, D/2), and which keys (last dimension) a query may see."""

    sin: torch.Tensor
    cos: torch.Tensor
    mask: torch.Tensor | None  # None: every key up to the query's own


def places_of(
    *, sin: torch.Tensor, cos: torch.Tensor, position_ids: torch.Tensor | None, segment_ids: torch.Tensor | None
) -> Places | None:
    """Of tokens at given positions and in given segments, (B, T) each, none of which sees another; None for neither."""
    if position_ids is not None:
        sin, cos = (table[0, 0][position_ids][:, None] for table in (sin, cos))
    mask = None
    if segment_ids is not None:
        T = segment_ids.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool, device=segment_ids.device).tril()
        mask = (causal & (segment_ids[:, :, None] == segment_ids[:, None, :]))[:, None]
    return None if position_ids is None and segment_ids is None else Places(sin, cos, mask)
