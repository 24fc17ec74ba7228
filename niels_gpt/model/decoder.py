"""Incremental decoding with a KV cache: keys and values of earlier tokens are kept, so that a new one costs little.

It computes what `GPT.hidden` does, with the blocks' own norms, linear layers, options and MLP, for few tokens and
without gradients. There the time goes into calls, not into arithmetic, so fewer are made than in training: q and k are
rotated together, in place, and k and v are kept together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import nn
from torch.nn import functional as F

from niels_gpt.model import rope
from niels_gpt.model.blocks import Block, Shortcuts
from niels_gpt.model.gpt import GPT


class Decoder:
    """A model and the KV cache of B sequences of up to T tokens.

    Row b holds `lengths[b]` tokens; what lies behind them is not looked at. Prompts of different length go in
    right-padded, in one call; `truncate` then says how long each really is, and the next token of a row takes the place
    of its first padding.
    """

    def __init__(self, model: GPT, *, B: int) -> None:
        self._model = model
        blocks = [cast(Block, block) for block in model.blocks]
        sin, cos = blocks[0].attn.rope_sin[0, 0], blocks[0].attn.rope_cos[0, 0]
        self._rotations = torch.complex(cos, sin)  # (T, D/2)
        self._blocks = [_CachedBlock(block, B=B) for block in blocks]
        self._ln_f = _direct(model.ln_f)
        self.lengths = [0] * B

    def truncate(self, lengths: list[int]) -> None:
        """Forget what lies behind `lengths[b]` tokens of each row b."""
        self.lengths = list(lengths)

    @torch.inference_mode()
    def extend(self, x: torch.Tensor) -> torch.Tensor:
        """Add n tokens to every row: ids (B, n) -> their hidden states (B, n, C), which `GPT.logits` takes."""
        T, n = self._model.cfg.T, x.shape[1]
        if max(self.lengths) + n > T:
            raise ValueError(f"{max(self.lengths) + n} tokens do not fit the context of T={T}")
        new = self._new_tokens(n)
        h = self._model.embed(x)
        shortcuts = Shortcuts(h)
        for block in self._blocks:
            h = block(h, new, shortcuts)
        self.lengths = [length + n for length in self.lengths]
        return self._ln_f(h)

    def _new_tokens(self, n: int) -> _NewTokens:
        start, end, device = self.lengths[0], max(self.lengths) + n, self._rotations.device
        if all(length == start for length in self.lengths):
            mask = torch.ones(n, end, dtype=torch.bool, device=device).tril(start) if start and n > 1 else None
            return _NewTokens(start, end, self._rotations[start:end, None], mask)
        if n > 1:
            raise ValueError("rows of different length can only go on token by token")
        starts = torch.tensor(self.lengths, device=device)
        mask = torch.arange(end, device=device) <= starts[:, None]
        return _NewTokens(starts, end, self._rotations[starts][:, None, None], mask[:, None, None])


@dataclass(frozen=True)
class _NewTokens:
    """Positions, rotations and attention mask of n new tokens a row."""

    start: int | torch.Tensor  # position of the first: the same in every row, or (B,) with n = 1
    end: int  # of the longest row
    rotations: torch.Tensor  # broadcast to (B, n, H, D/2)
    mask: torch.Tensor | None  # None: a token sees those of its row up to itself


class _CachedBlock:
    """A block and its KV cache: (B, 2H, T, D), the H heads of keys first."""

    def __init__(self, block: Block, *, B: int) -> None:
        attn = block.attn
        self._H = attn.cfg.H
        self._kv = attn.qkv.weight.new_zeros(B, 2 * attn.cfg.H, attn.cfg.T, attn.cfg.D)
        self._ln1, self._qkv, self._proj = _direct(block.ln1), _direct(attn.qkv), _direct(attn.proj)
        self._block, self._adjusted = _lean(block), _lean(attn).adjusted

    def __call__(self, h: torch.Tensor, new: _NewTokens, shortcuts: Shortcuts) -> torch.Tensor:
        """(B, n, C) -> (B, n, C)"""
        (B, n, C), H = h.shape, self._H
        h = self._block.before_attention(h, shortcuts)
        # Under autocast the product is bf16, whose pairs torch would copy to take them for complex numbers.
        qkv = self._adjusted(self._qkv(self._ln1(h)).float().view(B, n, 3 * H, C // H), shortcuts)
        rope.rotate_(qkv.narrow(2, 0, 2 * H).view(B, n, 2 * H, -1, 2), new.rotations)
        q, kv = qkv.transpose(1, 2).split_with_sizes((H, 2 * H), dim=1)
        if isinstance(new.start, int):
            self._kv.narrow(2, new.start, n).copy_(kv)
        else:
            self._kv[range(B), :, new.start] = kv[:, :, 0]
        k, v = self._kv.narrow(2, 0, new.end).chunk(2, dim=1)
        causal = new.mask is None and n > 1
        out = F.scaled_dot_product_attention(q, k, v, new.mask, is_causal=causal)
        return self._block.after_attention(h, self._proj(out.transpose(1, 2).reshape(B, n, C)))


_Module = TypeVar("_Module", bound=nn.Module)


def _lean(module: _Module) -> _Module:
    """A copy, of the same parameters, that finds them and its parts as plain attributes and calls parts directly.

    torch's own look-up of parameters and its wrapping of calls take a fifth of the time of a token.
    """
    lean = copy.copy(module)
    lean.__dict__.update(module.named_parameters(recurse=False))
    lean.__dict__.update((name, _direct(part)) for name, part in module.named_children())
    return lean


def _direct(module: nn.Module) -> Callable[..., torch.Tensor]:
    """What calling the module does. One with hooks is called as it is: they are part of a call, not of `forward`."""
    return module if module._forward_hooks or module._forward_pre_hooks else _lean(module).forward
