"""Where the tokens of a forward stand, and what each may look at. Left out, they stand at 0..T-1 and look back."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Places:
    """Rotations of the positions, (1 or B, 1, T, D/2), and which keys (last dimension) a query may see."""

    sin: torch.Tensor
    cos: torch.Tensor
    mask: torch.Tensor | None  # None: every key up to the query's own, or every key there is for a single query
