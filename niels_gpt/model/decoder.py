"""Incremental decoding with a KV cache, which keeps the keys and values of earlier tokens.

It computes what `GPT.hidden` does, with the blocks' own norms, linear layers, options and MLP, for few tokens and
without gradients. Call overhead dominates there, not arithmetic, so it makes fewer calls than training does: q and k
are rotated together, in place, and k and v share one cache tensor.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import nn

from niels_gpt.model.blocks import Block, ForwardPass
from niels_gpt.model.gpt import GPT
from niels_gpt.model.kernels import dispatch

# Attention reads keys in multiples of _BLOCK, the surplus masked: a row's result is then the same to the bit whatever
# the lengths of its neighbours. 38 keys and 64 keys gave different bits (ARM, D=64): the last two were summed apart.
_BLOCK = 64
_NO_DROPOUT = ForwardPass()
_PART = 32  # the cache length is a multiple of this: less than a block, but no less than any CPU's vector


class Decoder:
    """Model with the KV cache of `B` rows of up to `T` tokens.

    The caller tracks the length of each row: later positions are never attended to, and a row is truncated by
    continuing from an earlier position. Position T is a dummy that takes the keys of inactive rows.
    """

    def __init__(self, model: GPT, *, B: int) -> None:
        self._model, self.T = model, model.cfg.T
        blocks = [cast(Block, block) for block in model.blocks]
        sin, cos = blocks[0].attn.rope_sin[0, 0], blocks[0].attn.rope_cos[0, 0]
        self._rotations = torch.complex(cos, sin)  # (T, D/2)
        places = _whole(self.T + 1, _PART)
        self._blocks = [_CachedBlock(block, B=B, places=places) for block in blocks]
        self._ln_f = _lean(model.ln_f).forward
        self._end, self._places = places, torch.arange(places, device=sin.device)
        # A slice of this is the attention mask of one new token at any position.
        self._window = torch.cat((sin.new_zeros(places), sin.new_full((places,), float("-inf"))))

    @torch.inference_mode()
    def extend(self, x: torch.Tensor, *, starts: Sequence[int | None], first: int = 0) -> torch.Tensor:
        """Append ids x (b, n) to the rows from `first` on and return their hidden states (b, n, C) for `GPT.logits`.

        Row first + i continues at position starts[i]. Where starts differ, n must be 1. A row with start None is
        inactive: its cached tokens do not change.
        """
        b, n = x.shape
        end = max([start for start in starts if start is not None]) + n
        if end > self.T:
            raise ValueError(f"{end} tokens do not fit the context of T={self.T}")
        return self._hidden(x.to(self._places.device), slice(first, first + b), self._new_tokens(starts, n, end))

    @torch.inference_mode()
    def extend_anywhere(
        self, x: torch.Tensor, places: torch.Tensor, *, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Append ids x (b, n) at positions `places` (b, n) of `rows` (b,), the first b by default; see `extend`.

        Both are device tensors, and no control flow depends on their values, so a CUDA graph can record the call.
        Tokens at position T are inactive.
        """
        new = self._new_tokens_anywhere(places, looked_at=self._end)
        return self._hidden(x, slice(0, len(x)) if rows is None else rows, new)

    @torch.inference_mode()
    def swap(self, row: int, other: int, *, lengths: Sequence[int]) -> None:
        """Swap two rows of the cache, copying the first lengths[0] and lengths[1] tokens of each."""
        for kv in (block.kv for block in self._blocks):
            one, another = kv[row, :, : lengths[0]], kv[other, :, : lengths[1]].clone()
            kv[other, :, : lengths[0]] = one
            kv[row, :, : lengths[1]] = another

    @torch.inference_mode()
    def clear(self, row: int) -> None:
        """Zero a row's cache: a masked value has weight 0, and 0 * NaN would still be NaN."""
        for block in self._blocks:
            block.kv[row] = 0

    def _hidden(self, x: torch.Tensor, rows: slice | torch.Tensor, new: "_NewTokens") -> torch.Tensor:
        h, added = self._model.embed(x), None
        first_values: list[torch.Tensor] = []
        for block in self._blocks:
            h, added = block(h, added, rows, new, first_values)
        return self._ln_f(h, added)[1]

    def _new_tokens(self, starts: Sequence[int | None], n: int, end: int) -> "_NewTokens":
        start, looked_at = starts[0], min(_whole(end, _BLOCK), self._end)
        if start is None or starts.count(start) != len(starts):
            if n > 1:
                raise ValueError("rows that begin at different positions can only be continued token by token")
            places = torch.tensor(
                [[self.T if start is None else start] for start in starts], device=self._places.device
            )
            return self._new_tokens_anywhere(places, looked_at=looked_at)
        rotations = self._rotations[start:end, None]
        if n == 1 and len(starts) == 1:
            return _NewTokens(start, end, rotations, None)  # a single row has no neighbours to be independent of
        if n == 1:
            mask = self._window.narrow(0, self._end - 1 - start, looked_at)
            return _NewTokens(start, looked_at, rotations, mask[None, None, None])
        causal = torch.ones(n, end, dtype=torch.bool, device=self._places.device).tril(start) if start else None
        return _NewTokens(start, end, rotations, causal)

    def _new_tokens_anywhere(self, places: torch.Tensor, *, looked_at: int) -> "_NewTokens":
        mask = torch.where(self._places[:looked_at] <= places[:, None, :, None], 0.0, float("-inf"))
        rotations = self._rotations[places.clamp(max=self.T - 1)]
        return _NewTokens(places[:, None, :, None], looked_at, rotations[:, :, None], mask)


def _whole(n: int, size: int) -> int:
    """Round n up to a multiple of `size`."""
    return -(-n // size) * size


@dataclass(frozen=True)
class _NewTokens:
    """Positions, rotations and attention mask of n new tokens per row."""

    start: int | torch.Tensor  # the first position, if the same in every row; else all positions, (b, 1, n, 1)
    end: int  # number of cached positions that attention reads
    rotations: torch.Tensor  # broadcast to (b, n, H, D/2)
    mask: torch.Tensor | None  # None: causal


class _CachedBlock:
    """Block with its KV cache, (B, 2K, positions, D): first K heads of keys, then K heads of values."""

    def __init__(self, block: Block, *, B: int, places: int) -> None:
        cfg = block.attn.cfg
        self._B, self._H, self._K, self._D, self._T = B, cfg.H, cfg.K, cfg.D, cfg.T
        self.kv = block.attn.qkv.weight.new_zeros(B, 2 * cfg.K, places, cfg.D)
        self._block, self._attn = _lean(block), _lean(block.attn)

    def __call__(
        self,
        h: torch.Tensor,
        added: torch.Tensor | None,
        rows: slice | torch.Tensor,
        new: _NewTokens,
        first_values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Map (residual stream, output still to be added to it) to the same pair after the block, (b, n, C) each.

        The sum is left to the next norm, which a GPU computes in the same kernel.
        """
        attn = self._attn
        b, n, _ = h.shape
        h, normed = self._block.ln1(h, added)
        qkv = attn.qkv(normed).view(b, n, -1, self._D)
        kv = self.kv[rows] if isinstance(rows, torch.Tensor) or b < self._B else self.kv
        kernels = None if isinstance(new.start, int) or n > 1 else dispatch.decoding_kernels(qkv)
        if kernels is not None:
            out = kernels.attend_to_cache(attn.adjusted(qkv, first_values), kv, new.start, new.rotations, T=self._T)
        else:
            # Under autocast qkv is bf16, which torch cannot view as complex numbers.
            out = self._attended(attn.adjusted(qkv.float(), first_values), kv, new)
        if isinstance(rows, torch.Tensor):
            self.kv[rows] = kv
        h, normed = self._block.ln2(h, attn.proj(out.flatten(2)))
        return h, self._block.mlp(normed, _NO_DROPOUT)

    def _attended(self, qkv: torch.Tensor, kv: torch.Tensor, new: _NewTokens) -> torch.Tensor:
        """Rotate q and k of qkv (b, n, H + 2K, D), store k and v in the cache; return attention (b, n, H, D)."""
        (b, n, *_), H, K = qkv.shape, self._H, self._K
        torch.view_as_complex(qkv.narrow(2, 0, H + K).view(b, n, H + K, -1, 2)).mul_(new.rotations)
        q, new_kv = qkv.transpose(1, 2).split_with_sizes((H, 2 * K), dim=1)
        if isinstance(new.start, int):
            kv.narrow(2, new.start, n).copy_(new_kv)
        else:
            kv.scatter_(2, new.start.expand_as(new_kv), new_kv.to(kv.dtype))
        k, v = kv.narrow(2, 0, new.end).chunk(2, dim=1)
        causal = new.mask is None and n > 1
        return dispatch.attend_fused(q, k, v, new.mask, causal=causal).transpose(1, 2)


_Module = TypeVar("_Module", bound=nn.Module)


def _lean(module: _Module) -> _Module:
    """Return a copy sharing the parameters, which has them and its submodules' `forward` as plain attributes.

    nn.Module's attribute lookup and call wrapper take a fifth of the time of a token.
    """
    lean = copy.copy(module)
    lean.__dict__.update(module.named_parameters(recurse=False))
    lean.__dict__.update((name, _lean(part).forward) for name, part in module.named_children())
    return lean
