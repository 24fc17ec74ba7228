"""Keys and values of what a batch of sequences has said so far, so that the next token costs one token's work."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from niels_gpt.config import ModelConfig
from niels_gpt.model.places import Places


class KVCache:
    """Room for B sequences of up to T tokens. Row b holds `lengths[b]`; what lies behind that is not looked at.

    Prompts of different length go in right-padded, in one forward; `keep` then says how long each really is, and the
    next token of a row takes the place of its first padding.
    """

    def __init__(self, cfg: ModelConfig, *, B: int, device: str | torch.device, dtype: torch.dtype) -> None:
        shape = (cfg.L, B, cfg.H, cfg.T, cfg.D)
        self._k, self._v = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
        self.lengths = [0] * B

    def keep(self, lengths: list[int]) -> None:
        self.lengths = list(lengths)

    def places(self, n: int, *, sin: torch.Tensor, cos: torch.Tensor) -> Places:
        """Of the next n tokens of every row, given the rotations of all positions."""
        start = self.lengths[0]
        if self._even:
            mask = None
            if start and n > 1:
                places = torch.arange(start, start + n, device=sin.device)
                mask = torch.arange(start + n, device=sin.device) <= places[:, None]
            return Places(sin[:, :, start : start + n], cos[:, :, start : start + n], mask)
        if n > 1:
            raise ValueError("rows of different length can only go on token by token")
        at = torch.tensor(self.lengths, device=sin.device)
        mask = torch.arange(max(self.lengths) + 1, device=sin.device) <= at[:, None]
        return Places(sin[0, 0, at][:, None, None], cos[0, 0, at][:, None, None], mask[:, None, None])

    def layer(self, i: int) -> LayerCache:
        return LayerCache(k=self._k[i], v=self._v[i], lengths=self.lengths, even=self._even)

    def advance(self, n: int) -> None:
        """To be called when all layers have taken their n new tokens."""
        self.lengths = [length + n for length in self.lengths]

    @property
    def _even(self) -> bool:
        return min(self.lengths) == max(self.lengths)


@dataclass(frozen=True)
class LayerCache:
    """One block's part of the cache, (B, H, T, D)."""

    k: torch.Tensor
    v: torch.Tensor
    lengths: list[int]
    even: bool

    def extend(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take in the new keys and values (B, H, n, D); all that a query may look at comes back."""
        n, end = k.shape[2], max(self.lengths) + k.shape[2]
        if self.even:
            self.k[:, :, end - n : end], self.v[:, :, end - n : end] = k, v
        else:
            rows, at = range(len(self.lengths)), self.lengths
            self.k[rows, :, at], self.v[rows, :, at] = k[:, :, 0], v[:, :, 0]
        return self.k[:, :, :end], self.v[:, :, :end]
