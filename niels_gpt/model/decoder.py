"""A model that reads on: keys and values of what it has read are kept, so that the next token costs one token's work.

The sums are those of `GPT.hidden`, for few tokens and without gradients. There the time goes into calls, not into
numbers: modules, views and copies that training does not notice are a third of it and more, and are not made here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.nn import functional as F

from niels_gpt.model.blocks import Block
from niels_gpt.model.gpt import GPT


class Decoder:
    """A model and the B sequences of up to T tokens that it has read.

    Row b holds `lengths[b]` tokens; what lies behind them is not looked at. Prompts of different length go in
    right-padded, in one call; `keep` then says how long each really is, and the next token of a row takes the place of
    its first padding.
    """

    def __init__(self, model: GPT, *, B: int) -> None:
        self._model = model
        blocks = [cast(Block, block) for block in model.blocks]
        sin, cos = blocks[0].attn.rope_sin[0, 0], blocks[0].attn.rope_cos[0, 0]
        self._turns = torch.complex(cos, sin)  # (T, D/2): a pair of numbers is turned by multiplying it
        self._layers = [_Layer.of(block, B=B) for block in blocks]
        self.lengths = [0] * B

    def keep(self, lengths: list[int]) -> None:
        self.lengths = list(lengths)

    @torch.inference_mode()
    def read(self, x: torch.Tensor) -> torch.Tensor:
        """The next n tokens of every row, ids (B, n) -> (B, n, C), which is what `GPT.logits` takes."""
        T, n = self._model.cfg.T, x.shape[1]
        if max(self.lengths) + n > T:
            raise ValueError(f"{max(self.lengths) + n} tokens do not fit the context of T={T}")
        slots = self._slots(n)
        h = self._model.embed(x)
        for layer in self._layers:
            h = layer.read(h, slots)
        self.keep([length + n for length in self.lengths])
        normed: torch.Tensor = self._model.ln_f(h)
        return normed

    def _slots(self, n: int) -> _Slots:
        start, end, device = self.lengths[0], max(self.lengths) + n, self._turns.device
        if all(length == start for length in self.lengths):
            mask = torch.ones(n, end, dtype=torch.bool, device=device).tril(start) if start and n > 1 else None
            return _Slots(start, end, self._turns[start:end, None], mask)
        if n > 1:
            raise ValueError("rows of different length can only go on token by token")
        at = torch.tensor(self.lengths, device=device)
        mask = torch.arange(end, device=device) <= at[:, None]
        return _Slots(at, end, self._turns[at][:, None, None], mask[:, None, None])


@dataclass(frozen=True)
class _Slots:
    """Where n tokens of every row go."""

    at: int | torch.Tensor  # the first of them: the same place in every row, or (B,) with n = 1
    end: int  # of the longest row
    turns: torch.Tensor  # broadcast to (B, n, H, D/2)
    mask: torch.Tensor | None  # None: a token sees those of its row up to itself


_Affine = tuple[torch.Tensor, torch.Tensor]  # weight and bias


@dataclass(frozen=True)
class _Layer:
    """What there is to know of a block, and its keys and values: (B, 2H, T, D), the H of keys first."""

    ln1: _Affine
    qkv: _Affine
    proj: _Affine
    ln2: _Affine
    fc1: _Affine
    fc2: _Affine
    kv: torch.Tensor

    @classmethod
    def of(cls, block: Block, *, B: int) -> _Layer:
        def affine(module: nn.Linear | nn.LayerNorm) -> _Affine:
            return module.weight, module.bias

        attn, mlp = block.attn, block.mlp
        return cls(
            ln1=affine(block.ln1),
            qkv=affine(attn.qkv),
            proj=affine(attn.proj),
            ln2=affine(block.ln2),
            fc1=affine(mlp.fc1),
            fc2=affine(mlp.fc2),
            kv=attn.qkv.weight.new_zeros(B, 2 * attn.cfg.H, attn.cfg.T, attn.cfg.D),
        )

    def read(self, h: torch.Tensor, slots: _Slots) -> torch.Tensor:
        """(B, n, C) -> (B, n, C)"""
        C = h.shape[-1:]
        h = h + F.linear(self._attention(F.layer_norm(h, C, *self.ln1), slots), *self.proj)
        return h + F.linear(F.gelu(F.linear(F.layer_norm(h, C, *self.ln2), *self.fc1)), *self.fc2)

    def _attention(self, x: torch.Tensor, slots: _Slots) -> torch.Tensor:
        (B, n, C), H = x.shape, self.kv.shape[1] // 2
        # Under autocast the product is bf16, whose pairs torch would copy to take them for complex numbers.
        qkv = F.linear(x, *self.qkv).float().view(B, n, 3 * H, C // H)
        torch.view_as_complex(qkv.narrow(2, 0, 2 * H).view(B, n, 2 * H, -1, 2)).mul_(slots.turns)
        q, kv = qkv.transpose(1, 2).split_with_sizes((H, 2 * H), dim=1)
        if isinstance(slots.at, int):
            self.kv.narrow(2, slots.at, n).copy_(kv)
        else:
            self.kv[range(B), :, slots.at] = kv[:, :, 0]
        k, v = self.kv.narrow(2, 0, slots.end).chunk(2, dim=1)
        causal = slots.mask is None and n > 1
        out = F.scaled_dot_product_attention(q, k, v, slots.mask, is_causal=causal)
        return out.transpose(1, 2).reshape(B, n, C)
