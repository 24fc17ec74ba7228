"""Rotary position embedding (RoPE): rotates each pair (2i, 2i+1) of q and k by an angle proportional to position."""

import torch


def rope_cache(
    T: int,
    D: int,
    *,
    theta: float = 10000.0,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (sin, cos), each (1, 1, T, D//2), for positions 0..T-1, in `dtype` (default float32).

    Angles are computed in at least float32: bf16 cannot represent position 1001, but it can represent a sine.
    """
    assert D % 2 == 0, f"RoPE rotates pairs: D must be even, got {D}"
    dtype = dtype or torch.float32
    exact = torch.promote_types(dtype, torch.float32)
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


def _rotate(x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
    if x.device.type == "cpu":
        # Complex multiplication takes one pass over memory, a fifth of the time of the general code below. Heads are
        # moved behind positions, the layout in memory: torch would copy the gradient of any other layout.
        exact = torch.promote_types(x.dtype, torch.float32)
        rotations = torch.complex(cos.to(exact), sin.to(exact)).transpose(1, 2)
        pairs = torch.view_as_complex(x.transpose(1, 2).to(exact).unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * rotations).flatten(-2).transpose(1, 2).to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]  # (B, H, T, D/2) each
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)
