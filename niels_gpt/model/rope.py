"""Rotary position embedding (RoPE): each adjacent pair (2i, 2i+1) of q and k is rotated by an angle that grows with
position."""

from __future__ import annotations

import torch


def rope_cache(
    T: int,
    D: int,
    *,
    theta: float = 10000.0,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(sin, cos), each (1, 1, T, D//2), for positions 0..T-1.

    Angles are computed in float32 (in float64 where that is asked for), never in less: bf16 cannot hold position 1001,
    but it can hold a sine.
    """
    assert D % 2 == 0, f"RoPE rotates pairs: D must be even, got {D}"
    dtype = dtype or torch.float32
    exact = _at_least_float32(dtype)
    inv_freq = theta ** (-torch.arange(0, D, 2, device=device, dtype=exact) / D)  # (D/2,)
    angles = torch.arange(T, device=device, dtype=exact)[:, None] * inv_freq  # (T, D/2)
    return angles.sin()[None, None].to(dtype), angles.cos()[None, None].to(dtype)


def apply_rope(
    q: torch.Tensor, k: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k (B, H, T, D) by the first T positions of the cache. Shapes and dtypes are preserved."""
    T, D = q.shape[-2:]
    assert D % 2 == 0, f"RoPE rotates pairs: D must be even, got {D}"
    sin, cos = sin[:, :, :T], cos[:, :, :T]
    return _rotate(q, sin, cos), _rotate(k, sin, cos)


def rotate_(pairs: torch.Tensor, rotations: torch.Tensor) -> None:
    """Rotate pairs (..., D/2, 2) in place, without gradients. `rotations`, cos + i sin of the angles: (..., D/2)."""
    torch.view_as_complex(pairs).mul_(rotations)


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _rotate(x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
    if x.device.type == "cpu":
        # Pairs as complex numbers are rotated in one pass over memory, a fifth of the time of what follows. Heads go
        # behind positions, as they lie in memory: torch would copy the gradient of pairs that lie otherwise.
        exact = _at_least_float32(x.dtype)
        rotations = torch.complex(cos.to(exact), sin.to(exact)).transpose(1, 2)
        pairs = torch.view_as_complex(x.transpose(1, 2).to(exact).unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * rotations).flatten(-2).transpose(1, 2).to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]  # (B, H, T, D/2) each
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)
