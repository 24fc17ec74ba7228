"""Transformer blocks: causal self-attention and an MLP, with positions, dropout and the model options.

Pre-norm: gradients reach the first block through the residual stream, which no norm interrupts. Shapes: B batch, T
positions, C width, H heads, D = C/H.

Dropout: the GPT passes one to its blocks, and a block to its parts. A module that is called alone and gets none has its
own: in training it samples keys from torch's generator, in eval mode it drops nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from niels_gpt.config import ModelConfig
from niels_gpt.model import rope
from niels_gpt.model.kernels import dispatch
from niels_gpt.rng import mixed

# Dropout whose masks depend on a key of each row and on the place in the model, and on nothing else.
#
# A mask drawn from a generator depends on how many rows are drawn for together: micro-batches and ranks would each
# train another model. Here every bit of a mask is a hash of (key, place, index), the same on every machine.

# Odd constants of a well-known hash: any that mix would do, but these are part of what a run's numbers depend on.
_ODD = (0x7FEB352D, 0x846CA68B - (1 << 32))


@dataclass(frozen=True, eq=False)  # torch.compile would hash it
class RowDropout:
    """Dropout of one forward pass. `keys` (B,) int64 has one for each row; None is no dropout."""

    p: float
    keys: torch.Tensor | None

    def on(self, h: torch.Tensor, *, place: int) -> torch.Tensor:
        """h (B, ...) with a fraction `p` of its elements 0 and the others enlarged by as much."""
        return h if self.keys is None else self._masked(h, h.shape[1:], place)

    def on_vectors(self, h: torch.Tensor, *, place: int) -> torch.Tensor:
        """The same for whole vectors, the last dimension of h."""
        return h if self.keys is None else self._masked(h, (*h.shape[1:-1], 1), place)

    def _masked(self, h: torch.Tensor, shape: tuple[int, ...], place: int) -> torch.Tensor:
        assert self.keys is not None
        dropped = dropout_mask(self.keys, place=place, count=math.prod(shape), p=self.p)
        factors = torch.where(dropped, 0.0, 1 / (1 - self.p))  # in float32, also where h is coarser
        return (h * factors.view(-1, *shape)).to(h.dtype)


NO_DROPOUT = RowDropout(0.0, None)


def module_dropout(module: nn.Module, h: torch.Tensor, p: float, *, keys: torch.Tensor | None = None) -> RowDropout:
    """Return the dropout of a module called on h (B, ...): none outside training.

    Without `keys`, sample them from torch's default generator.
    """
    if not module.training or not p:
        return NO_DROPOUT
    return RowDropout(p, torch.randint(1 << 62, (len(h),), device=h.device) if keys is None else keys)


def dropout_mask(keys: torch.Tensor, *, place: int, count: int, p: float) -> torch.Tensor:
    """Which elements are dropped: (B, count) booleans, each true with probability `p`."""
    row = mixed(keys + (place << 40))[:, None]  # keys of rows are neighbours
    first, second = (row >> 32).int(), (row << 32 >> 32).int()
    x = torch.arange(count, dtype=torch.int32, device=keys.device) ^ first
    x = x * _ODD[0]
    x = x ^ (x >> 15 & 0x1FFFF)
    x = (x ^ second) * _ODD[1]
    return x < round(p * (1 << 32)) - (1 << 31)


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


_EPS = 1e-5  # of RMSNorm, as LayerNorm's


class Shortcuts:
    """What every block may look back at: the embedding, and the first block's values, which that one leaves here."""

    def __init__(self, embedding: torch.Tensor, values: torch.Tensor | None = None) -> None:
        self.embedding, self.values = embedding, values

    def first_values(self, own: torch.Tensor) -> torch.Tensor:
        if self.values is None:
            self.values = own
        return self.values


class LayerNorm(nn.LayerNorm):
    """Of the residual stream and what is added to it there, which on a GPU is one kernel."""

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """The sum, and its norm."""
        kernel = dispatch.add_and_norm(x)
        if kernel is not None:
            return kernel(x, added, self.weight, self.bias, eps=self.eps, centred=True)
        x = _plus(x, added)
        return x, super().forward(x)


class RMSNorm(nn.RMSNorm):
    """Likewise; in float32 whatever the input, as LayerNorm is under autocast."""

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        kernel = dispatch.add_and_norm(x)
        if kernel is not None:
            return kernel(x, added, self.weight, None, eps=_EPS, centred=False)
        x = _plus(x, added)
        return x, super().forward(x.float())


def _plus(x: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
    return x if added is None else x + added


def build_norm(cfg: ModelConfig) -> LayerNorm | RMSNorm:
    return RMSNorm(cfg.C, eps=_EPS) if cfg.norm == "rms" else LayerNorm(cfg.C, bias=cfg.bias)


class CausalSelfAttention(nn.Module):
    """H heads of causal self-attention with rotary position embedding: project, rotate, attend, project.

    Dropout falls on values: a head does not see a position at all. Measured, that is as good as dropout on the
    probabilities, which fused kernels do not give out: 1.446 and 1.441 nats on held-out text at p=0.1, and 1.48 without
    either. It also falls on the output. `place` and the next one are its own.
    """

    rope_sin: torch.Tensor
    rope_cos: torch.Tensor

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.qkv = nn.Linear(cfg.C, 3 * cfg.C, bias=cfg.bias)
        self.proj = nn.Linear(cfg.C, cfg.C, bias=cfg.bias)
        if cfg.value_residual:
            self.value_shares = nn.Parameter(torch.tensor([0.5, 0.5]))  # of own values, and of the first block's
        sin, cos = rope.rope_cache(cfg.T, cfg.D, theta=cfg.rope_theta)
        # A function of the configuration: not part of the weights.
        self.register_buffer("rope_sin", sin, persistent=False)
        self.register_buffer("rope_cos", cos, persistent=False)

    def forward(
        self,
        x: torch.Tensor,
        *,
        dropout: RowDropout | None = None,
        place: int = 0,
        positions: Positions | None = None,
        shortcuts: Shortcuts | None = None,
        return_attn: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """x (B, T, C) -> (B, T, C); with `return_attn` also the probabilities (B, H, T, T)."""
        H = self.cfg.H
        if x.shape[1] > self.cfg.T:
            raise ValueError(f"{x.shape[1]} tokens do not fit the context of T={self.cfg.T}")
        dropout = dropout or module_dropout(self, x, self.cfg.dropout)
        sin, cos, mask = self.rope_sin, self.rope_cos, None
        if positions is not None:
            sin, cos, mask = positions.sin, positions.cos, positions.mask
        # Kernels that rotate know the positions 0..T-1 and the causal mask alone, and heads as they are projected.
        plain = positions is None and not self.cfg.qk_norm
        kernel = dispatch.project_and_rotate(self.qkv, x) if plain else None
        if kernel is not None:
            q, k, v = kernel(self.qkv, x, sin, cos, H=H)
        else:
            qk, v = self.qkv(x).unflatten(-1, (3 * H, -1)).split((2 * H, H), dim=-2)
            q, k, v = (part.transpose(1, 2) for part in (*self.normed(qk).chunk(2, dim=-2), v))  # (B, H, T, D)
            q, k = rope.apply_rope(q, k, sin, cos)
        v = self.mixed(dropout.on_vectors(v, place=place), shortcuts or Shortcuts(x))
        attn = q.new_empty(0)
        attend = dispatch.attend(q, return_attn=return_attn)
        if attend is not None:
            out, attn = attend(q, k, v, mask)
        else:
            out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        out = dropout.on(self.proj(out.transpose(1, 2).reshape(x.shape)), place=place + 1)
        return (out, attn) if return_attn else out

    def normed(self, qk: torch.Tensor) -> torch.Tensor:
        """Queries and keys (..., D) as they are before rotation."""
        return F.rms_norm(qk, (self.cfg.D,), eps=_EPS) if self.cfg.qk_norm else qk

    def mixed(self, v: torch.Tensor, shortcuts: Shortcuts) -> torch.Tensor:
        """Values as attention takes them. Those of the first block are mixed in with its own dropout: with one more for
        each block that takes them, their gradient became a kernel that torch's compiler made wrongly."""
        if not self.cfg.value_residual:
            return v
        own, first = self.value_shares.to(v.dtype)
        return own * v + first * shortcuts.first_values(v)

    def adjusted(self, heads: torch.Tensor, shortcuts: Shortcuts) -> torch.Tensor:
        """Both of these on queries, keys and values that lie together, (..., 3H, D)."""
        if not (self.cfg.qk_norm or self.cfg.value_residual):
            return heads
        qk, v = heads.split((2 * self.cfg.H, self.cfg.H), dim=-2)
        return torch.cat((self.normed(qk), self.mixed(v, shortcuts)), dim=-2)


class MLP(nn.Module):
    """Feed-forward network: C -> d_ff -> C, with an activation between, and dropout on the output."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.fc1 = nn.Linear(cfg.C, cfg.d_ff, bias=cfg.bias)
        self.fc2 = nn.Linear(cfg.d_ff, cfg.C, bias=cfg.bias)

    def forward(self, x: torch.Tensor, *, dropout: RowDropout | None = None, place: int = 0) -> torch.Tensor:
        """x (..., C) -> (..., C)."""
        dropout = dropout or module_dropout(self, x, self.cfg.dropout)
        fc1 = self.fc1
        if self.cfg.activation == "relu2":
            h = F.relu(fc1(x)).square()
        else:
            kernel = dispatch.project_and_gelu(fc1, x)
            h = self.gelu(fc1(x)) if kernel is None else kernel(fc1, x)
        return dropout.on(self.fc2(h), place=place)

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        return (dispatch.gelu(x) or F.gelu)(x)


class Block(nn.Module):
    """x + attn(norm(x)), then + mlp(norm(x)), each with its dropout: `place` and the next two are its own."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        if cfg.x0_skip:
            self.stream_shares = nn.Parameter(torch.tensor([1.0, 0.0]))  # of the residual stream, and of the embedding
        self.x0_skip = cfg.x0_skip
        self.ln1 = build_norm(cfg)
        self.attn = CausalSelfAttention(cfg)
        self.ln2 = build_norm(cfg)
        self.mlp = MLP(cfg)

    def forward(
        self,
        x: torch.Tensor,
        *,
        dropout: RowDropout | None = None,
        place: int = 0,
        positions: Positions | None = None,
        shortcuts: Shortcuts | None = None,
        return_attn: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """x (B, T, C) -> (B, T, C); with `return_attn` also the attention probabilities."""
        dropout = dropout or module_dropout(self, x, self.attn.cfg.dropout)
        shortcuts = shortcuts or Shortcuts(x)
        x, normed = self.before_attention(x, None, shortcuts)
        out = self.attn(
            normed, dropout=dropout, place=place, positions=positions, shortcuts=shortcuts, return_attn=return_attn
        )
        out, attn = out if return_attn else (out, None)
        x, normed = self.ln2(x, out)
        x = x + self.mlp(normed, dropout=dropout, place=place + 2)
        return x if attn is None else (x, attn)

    def before_attention(
        self, x: torch.Tensor, added: torch.Tensor | None, shortcuts: Shortcuts
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual stream as the block takes it, with what the block before still adds to it; and its norm."""
        if self.x0_skip:
            x = _plus(x, added)
            stream, embedding = self.stream_shares.to(x.dtype)
            x, added = stream * x + embedding * shortcuts.embedding, None
        normed: tuple[torch.Tensor, torch.Tensor] = self.ln1(x, added)
        return normed


def init_weights(module: nn.Module) -> None:
    """N(0, 0.02) for matrices and embeddings, 0 for biases, 1 and 0 for norms. For `module.apply`."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, mean=0.0, std=0.02)
    if isinstance(module, nn.LayerNorm):
        nn.init.ones_(module.weight)
    bias = getattr(module, "bias", None)
    if isinstance(module, nn.Linear | nn.LayerNorm) and bias is not None:
        nn.init.zeros_(bias)


def zero_outputs(module: nn.Module) -> None:
    """Blocks that add nothing yet: the model begins as its embedding and head. For `module.apply`."""
    if isinstance(module, CausalSelfAttention):
        nn.init.zeros_(module.proj.weight)
    if isinstance(module, MLP):
        nn.init.zeros_(module.fc2.weight)
