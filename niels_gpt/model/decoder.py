"""Incremental decoding with a KV cache: keys and values of earlier tokens are kept, so that a new one costs little.

It computes what `GPT.hidden` does, with the blocks' own norms, linear layers, options and MLP, for few tokens and
without gradients. There the time goes into calls, not into arithmetic, so fewer are made than in training: q and k are
rotated together, in place, and k and v are kept together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn import functional as F

from niels_gpt.model import rope
from niels_gpt.model.blocks import NO_DROPOUT, Block, Shortcuts
from niels_gpt.model.gpt import GPT
from niels_gpt.model.kernels import dispatch

# Keys are looked at in whole blocks of so many, the last of them masked: a kernel that adds what is masked as zeros
# then gives a row the same bits whatever the lengths beside it. Of 38 keys and of 64 it did not (ARM, D=64): the last
# two were added apart.
_BLOCK = 64
_PART = 32  # the cache ends with a part of a block, but not with less than a vector of any CPU


class Decoder:
    """A model and the KV cache of B rows of up to T tokens.

    How many tokens of a row count is the caller's to know: what lies behind them is not looked at, and a row is cut
    short by going on from an earlier place. Behind the T places is one more, for the keys of rows that take no part.
    """

    def __init__(self, model: GPT, *, B: int) -> None:
        self._model, self.T = model, model.cfg.T
        blocks = [cast(Block, block) for block in model.blocks]
        sin, cos = blocks[0].attn.rope_sin[0, 0], blocks[0].attn.rope_cos[0, 0]
        self._rotations = torch.complex(cos, sin)  # (T, D/2)
        places = _whole(self.T + 1, _PART)
        self._blocks = [_CachedBlock(block, B=B, places=places) for block in blocks]
        self._ln_f = _direct(model.ln_f)
        self._end, self._places = places, torch.arange(places, device=sin.device)
        # What one new token at any place sees is a part of it.
        self._window = torch.cat((sin.new_zeros(places), sin.new_full((places,), float("-inf"))))

    @torch.inference_mode()
    def extend(self, x: torch.Tensor, *, starts: Sequence[int | None], first: int = 0) -> torch.Tensor:
        """Ids (b, n) for the rows from `first` on, the n of row i at the places from starts[i] on -> their hidden
        states (b, n, C), which `GPT.logits` takes. Rows that begin at different places go on token by token; of one
        that begins nowhere nothing is changed."""
        b, n = x.shape
        end = max([start for start in starts if start is not None]) + n
        if end > self.T:
            raise ValueError(f"{end} tokens do not fit the context of T={self.T}")
        return self._hidden(x.to(self._places.device), slice(first, first + b), self._new_tokens(starts, n, end))

    @torch.inference_mode()
    def extend_anywhere(
        self, x: torch.Tensor, places: torch.Tensor, *, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same where the places (b, n) of the tokens are known to the device alone, and maybe the rows (b,), which
        are the first b without it: nothing that is done depends on them, so that a graph can record it. Tokens at place
        T take no part."""
        new = self._new_tokens_anywhere(places, looked_at=self._end)
        return self._hidden(x, slice(0, len(x)) if rows is None else rows, new)

    @torch.inference_mode()
    def swap(self, row: int, other: int, *, lengths: Sequence[int]) -> None:
        """Two rows change places, each with so many of its tokens."""
        for block in self._blocks:
            block.swap(row, other, lengths)

    @torch.inference_mode()
    def clear(self, row: int) -> None:
        """Zero a row's cache. A masked key has the weight 0, and 0 times one that is no number is none either."""
        for block in self._blocks:
            block.clear(row)

    def _hidden(self, x: torch.Tensor, rows: slice | torch.Tensor, new: _NewTokens) -> torch.Tensor:
        h, added = self._model.embed(x), None
        shortcuts = Shortcuts(h)
        for block in self._blocks:
            h, added = block(h, added, rows, new, shortcuts)
        return self._ln_f(h, added)[1]

    def _new_tokens(self, starts: Sequence[int | None], n: int, end: int) -> _NewTokens:
        start, looked_at = starts[0], min(_whole(end, _BLOCK), self._end)
        if start is None or starts.count(start) != len(starts):
            if n > 1:
                raise ValueError("rows that begin at different places can only go on token by token")
            places = torch.tensor(
                [[self.T if start is None else start] for start in starts], device=self._places.device
            )
            return self._new_tokens_anywhere(places, looked_at=looked_at)
        rotations = self._rotations[start:end, None]
        if n == 1 and len(starts) == 1:
            return _NewTokens(start, end, rotations, None)  # a row by itself has no neighbours to be told apart from
        if n == 1:
            mask = self._window.narrow(0, self._end - 1 - start, looked_at)
            return _NewTokens(start, looked_at, rotations, mask[None, None, None])
        causal = torch.ones(n, end, dtype=torch.bool, device=self._places.device).tril(start) if start else None
        return _NewTokens(start, end, rotations, causal)

    def _new_tokens_anywhere(self, places: torch.Tensor, *, looked_at: int) -> _NewTokens:
        mask = torch.where(self._places[:looked_at] <= places[:, None, :, None], 0.0, float("-inf"))
        rotations = self._rotations[places.clamp(max=self.T - 1)]
        return _NewTokens(places[:, None, :, None], looked_at, rotations[:, :, None], mask)


def _whole(n: int, size: int) -> int:
    """n in whole parts of this size."""
    return -(-n // size) * size


@dataclass(frozen=True)
class _NewTokens:
    """Places, rotations and attention mask of n new tokens a row."""

    start: int | torch.Tensor  # the first place, the same in every row; or all of them, (b, 1, n, 1)
    end: int  # of what is looked at
    rotations: torch.Tensor  # broadcast to (b, n, H, D/2)
    mask: torch.Tensor | None  # None: a token sees those of its row up to itself


class _CachedBlock:
    """A block and its KV cache: (B, 2H, places, D), the H heads of keys first."""

    def __init__(self, block: Block, *, B: int, places: int) -> None:
        attn = block.attn
        self._H, self._B, self._T = attn.cfg.H, B, attn.cfg.T
        self._kv = attn.qkv.weight.new_zeros(B, 2 * attn.cfg.H, places, attn.cfg.D)
        self._qkv, self._proj = _direct(attn.qkv), _direct(attn.proj)
        self._block, self._adjusted = _lean(block), _lean(attn).adjusted

    def __call__(
        self,
        h: torch.Tensor,
        added: torch.Tensor | None,
        rows: slice | torch.Tensor,
        new: _NewTokens,
        shortcuts: Shortcuts,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual stream and what is still to be added to it, before the block and after it, (b, n, C) each."""
        (b, n, C), H = h.shape, self._H
        h, normed = self._block.before_attention(h, added, shortcuts)
        qkv = self._qkv(normed).view(b, n, 3 * H, C // H)
        kv = self._kv[rows] if isinstance(rows, torch.Tensor) or b < self._B else self._kv
        kernel = None if isinstance(new.start, int) or n > 1 else dispatch.attend_to_cache(qkv)
        if kernel is not None:
            out = kernel(self._adjusted(qkv, shortcuts), kv, new.start, new.rotations, T=self._T)
        else:
            # Under autocast the product is bf16, whose pairs torch would copy to take them for complex numbers.
            out = self._attended(self._adjusted(qkv.float(), shortcuts), kv, new)
        if isinstance(rows, torch.Tensor):
            self._kv[rows] = kv
        h, normed = self._block.ln2(h, self._proj(out.reshape(b, n, C)))
        return h, self._block.mlp(normed, dropout=NO_DROPOUT)

    def _attended(self, qkv: torch.Tensor, kv: torch.Tensor, new: _NewTokens) -> torch.Tensor:
        """Heads (b, n, 3H, D) -> (b, n, H, D), keys and values kept."""
        (b, n, *_), H = qkv.shape, self._H
        rope.rotate_(qkv.narrow(2, 0, 2 * H).view(b, n, 2 * H, -1, 2), new.rotations)
        q, new_kv = qkv.transpose(1, 2).split_with_sizes((H, 2 * H), dim=1)
        if isinstance(new.start, int):
            kv.narrow(2, new.start, n).copy_(new_kv)
        else:
            kv.scatter_(2, new.start.expand_as(new_kv), new_kv.to(kv.dtype))
        k, v = kv.narrow(2, 0, new.end).chunk(2, dim=1)
        causal = new.mask is None and n > 1
        return F.scaled_dot_product_attention(q, k, v, new.mask, is_causal=causal).transpose(1, 2)

    def clear(self, row: int) -> None:
        self._kv[row] = 0

    def swap(self, row: int, other: int, lengths: Sequence[int]) -> None:
        one, another = self._kv[row, :, : lengths[0]], self._kv[other, :, : lengths[1]].clone()
        self._kv[other, :, : lengths[0]] = one
        self._kv[row, :, : lengths[1]] = another


_Module = TypeVar("_Module", bound=nn.Module)


def _lean(module: _Module) -> _Module:
    """A copy, of the same parameters, that finds them and its parts as plain attributes and calls parts directly.

    torch's own look-up of parameters and its wrapping of calls take a fifth of the time of a token.
    """
    lean = copy.copy(module)
    lean.__dict__.update(module.named_parameters(recurse=False))
    lean.__dict__.update((name, _direct(part)) for name, part in module.named_children())
    return lean


def _direct(module: nn.Module) -> Callable[..., Any]:
    """What calling the module does. One with hooks is called as it is: they are part of a call, not of `forward`."""
    return module if module._forward_hooks or module._forward_pre_hooks else _lean(module).forward
