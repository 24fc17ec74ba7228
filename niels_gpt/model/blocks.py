"""Transformer blocks: causal self-attention and an MLP, with positions, dropout and the model options.

Pre-norm: gradients reach the first block through the residual stream, which no norm interrupts. Shapes: `B` batch, `T`
positions, `C` width, `H` heads of queries, `K` heads of keys and values (H unless attention is grouped), `D` width of a
head.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from niels_gpt.config import ModelConfig
from niels_gpt.model import rope
from niels_gpt.model.kernels import dispatch
from niels_gpt.rng import mixed

# Dropout masks are a hash of (row key, dropout site, element index), the same on every machine. Masks sampled from a
# generator would depend on how many rows share a call, so micro-batches and ranks would change the trained model.


def dropout_mask(keys: torch.Tensor, *, place: int, count: int, p: float) -> torch.Tensor:
    """Return (B, count) booleans, True for dropped elements, each with probability `p`."""
    row = mixed(keys + (place << 40))[:, None]  # row keys are consecutive integers: mix them first
    first, second = (row >> 32).int(), (row << 32 >> 32).int()
    # Multipliers of the lowbias32 hash. Other odd constants would mix as well, but a run's numbers depend on these.
    x = (torch.arange(count, dtype=torch.int32, device=keys.device) ^ first) * 0x7FEB352D
    x = x ^ (x >> 15 & 0x1FFFF)  # torch has no logical shift: the mask clears the copies of the sign bit
    x = (x ^ second) * (0x846CA68B - (1 << 32))
    return x < round(p * (1 << 32)) - (1 << 31)


class Positions(NamedTuple):
    """Sines and cosines of the rotary angles, (1 or B, 1, T, D/2), and a boolean attention mask (B, 1, T, T)."""

    sin: torch.Tensor
    cos: torch.Tensor
    mask: torch.Tensor | None  # True: the query (row) sees the key (column); None: causal


@dataclass(eq=False)  # torch.compile would call the generated __hash__
class ForwardPass:
    """State that the blocks of one forward pass share; a block or a part of it that is called alone makes its own.

    `p` is the dropout probability, `keys` (B,) int64 the dropout key of each row (None: no dropout).
    """

    p: float = 0.0
    keys: torch.Tensor | None = None
    positions: Positions | None = None
    # Values of the first block, which later blocks mix in (value_residual); empty until that block has computed them.
    first_values: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, module: nn.Module, h: torch.Tensor, p: float, *, keys: torch.Tensor | None = None) -> "ForwardPass":
        """Return the state of a module called on h (B, ...), with dropout only in training.

        Without row `keys` (B,), sample them from torch's default generator.
        """
        if not module.training or not p:
            return cls()
        return cls(p, torch.randint(1 << 62, (len(h),), device=h.device) if keys is None else keys)

    def dropped(self, h: torch.Tensor, *, place: int, vectors: bool = False) -> torch.Tensor:
        """Return h (B, ...) with a fraction `p` of its elements zeroed and the others scaled by 1 / (1 - p).

        `place` is the index of the dropout site in the model. With `vectors`, whole vectors (the last dimension of h)
        are dropped instead of single elements.
        """
        if self.keys is None:
            return h
        shape = (*h.shape[1:-1], 1) if vectors else h.shape[1:]
        mask = dropout_mask(self.keys, place=place, count=math.prod(shape), p=self.p)
        factors = torch.where(mask, 0.0, 1 / (1 - self.p))  # float32 even if h is bf16
        return (h * factors.view(-1, *shape)).to(h.dtype)


class LayerNorm(nn.LayerNorm):
    """LayerNorm of the residual stream plus a block's output; one fused kernel for inference on a GPU."""

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """Return x + added and its norm, (..., C) each."""
        if kernels := dispatch.norm_kernels(x):
            return kernels.add_and_norm(x, added, self.weight, self.bias, eps=self.eps, centred=True)
        x = x if added is None else x + added
        return x, super().forward(x)


class RMSNorm(nn.RMSNorm):
    """RMSNorm with the interface of LayerNorm; computed in float32 for any input, as LayerNorm is under autocast."""

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        if kernels := dispatch.norm_kernels(x):
            return kernels.add_and_norm(x, added, self.weight, None, eps=self.eps, centred=False)
        x = x if added is None else x + added
        return x, super().forward(x.float())


def build_norm(cfg: ModelConfig) -> LayerNorm | RMSNorm:
    """Return the norm that `cfg.norm` names, over `C` features."""
    eps = cfg.norm_eps
    return RMSNorm(cfg.C, eps=eps) if cfg.norm == "rms" else LayerNorm(cfg.C, eps=eps, bias=cfg.bias)


class CausalSelfAttention(nn.Module):
    """Causal self-attention with H heads and rotary position embedding: project, rotate, attend, project.

    With cfg.kv_heads each head of keys and values serves a group of H / K adjacent heads of queries.

    Dropout is applied to the output and to whole value vectors, which hides a position from a head. That is as good as
    dropout on the attention probabilities, which fused kernels do not expose: validation loss 1.446 against 1.441
    nats/token at p=0.1, and 1.48 without either. Uses the dropout sites `place` and `place + 1`.
    """

    rope_sin: torch.Tensor
    rope_cos: torch.Tensor

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.qkv = nn.Linear(cfg.C, (cfg.H + 2 * cfg.K) * cfg.D, bias=cfg.bias)
        self.proj = nn.Linear(cfg.H * cfg.D, cfg.C, bias=cfg.bias)
        if cfg.qk_gain:
            self.q_gain, self.k_gain = (nn.Parameter(torch.ones(cfg.D)) for _ in range(2))
        if cfg.value_residual:
            self.value_shares = nn.Parameter(torch.tensor([0.5, 0.5]))  # weights: own values, first block's values
        sin, cos = rope.rope_cache(cfg.T, cfg.D, theta=cfg.rope_theta)
        # Not persistent: computed from the configuration, so not part of a checkpoint.
        self.register_buffer("rope_sin", sin, persistent=False)
        self.register_buffer("rope_cos", cos, persistent=False)

    def forward(
        self, x: torch.Tensor, shared: ForwardPass | None = None, *, place: int = 0, return_attn: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Map x (B, T, C) to (B, T, C); with `return_attn` also return the attention probabilities (B, H, T, T)."""
        H, K = self.cfg.H, self.cfg.K
        if x.shape[1] > self.cfg.T:
            raise ValueError(f"{x.shape[1]} tokens do not fit the context of T={self.cfg.T}")
        shared = shared or ForwardPass.of(self, x, self.cfg.dropout)
        sin, cos, mask = shared.positions or (self.rope_sin, self.rope_cos, None)
        # The fused kernel supports only positions 0..T-1, the causal mask, and as many k as q, without a norm.
        plain = shared.positions is None and not self.cfg.qk_norm and H == K
        if plain and (kernels := dispatch.training_kernels(self.qkv, x)):
            q, k, v = kernels.project_and_rotate(self.qkv, x, sin, cos, H=H)
        else:
            qk, v = self.qkv(x).unflatten(-1, (H + 2 * K, -1)).split((H + K, K), dim=-2)
            q, k = self.normed(qk).split((H, K), dim=-2)
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))  # (B, H or K, T, D)
            q, k = rope.apply_rope(q, k, sin, cos)
        v = self.mixed(shared.dropped(v, place=place, vectors=True), shared.first_values)
        attn = None
        if return_attn or dispatch.faster_unfused(q):
            out, attn = dispatch.attend_unfused(q, k, v, mask)
        else:
            out = dispatch.attend_fused(q, k, v, mask, causal=mask is None)
        out = shared.dropped(self.proj(out.transpose(1, 2).flatten(2)), place=place + 1)
        return (out, attn) if return_attn and attn is not None else out

    def positions(self, position_ids: torch.Tensor | None, segment_ids: torch.Tensor | None) -> Positions | None:
        """Return the Positions of tokens with these position and segment ids, (B, T) each.

        Tokens attend only within their own segment. None if neither is given: positions 0..T-1 and a causal mask.
        """
        if position_ids is None and segment_ids is None:
            return None
        sin, cos, mask = self.rope_sin, self.rope_cos, None
        if position_ids is not None:
            sin, cos = (table[0, 0][position_ids][:, None] for table in (sin, cos))
        if segment_ids is not None:
            T = segment_ids.shape[1]
            causal = torch.ones(T, T, dtype=torch.bool, device=segment_ids.device).tril()
            mask = (causal & (segment_ids[:, :, None] == segment_ids[:, None, :]))[:, None]
        return Positions(sin, cos, mask)

    def normed(self, qk: torch.Tensor) -> torch.Tensor:
        """Return queries and keys (..., H + K, D) ready for rotation: RMS-normed if cfg.qk_norm."""
        if not self.cfg.qk_norm:
            return qk
        normed = F.rms_norm(qk, (self.cfg.D,), eps=self.cfg.norm_eps)
        if not self.cfg.qk_gain:
            return normed
        gains = torch.cat((self.q_gain.expand(self.cfg.H, -1), self.k_gain.expand(self.cfg.K, -1)))
        return normed * gains.to(qk.dtype)

    def mixed(self, v: torch.Tensor, first_values: list[torch.Tensor]) -> torch.Tensor:
        """Return the values for attention: with cfg.value_residual a learned mix of v and the first block's.

        The first block's values keep that block's dropout mask. One more mask per block that uses them made
        torch.compile generate a wrong gradient kernel.
        """
        if not self.cfg.value_residual:
            return v
        if not first_values:
            first_values.append(v)
        own, first = self.value_shares.to(v.dtype)
        return own * v + first * first_values[0]

    def adjusted(self, heads: torch.Tensor, first_values: list[torch.Tensor]) -> torch.Tensor:
        """Apply `normed` and `mixed` to queries, keys and values stored together, (..., H + 2K, D)."""
        if not (self.cfg.qk_norm or self.cfg.value_residual):
            return heads
        qk, v = heads.split((self.cfg.H + self.cfg.K, self.cfg.K), dim=-2)
        return torch.cat((self.normed(qk), self.mixed(v, first_values)), dim=-2)


class MLP(nn.Module):
    """Feed-forward network: C -> d_ff -> C with an activation in between and dropout on the output.

    SwiGLU multiplies fc1(x) by silu(gate(x)) instead.
    """

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.fc1 = nn.Linear(cfg.C, cfg.d_ff, bias=cfg.bias)
        if cfg.activation == "swiglu":
            self.gate = nn.Linear(cfg.C, cfg.d_ff, bias=cfg.bias)
        self.fc2 = nn.Linear(cfg.d_ff, cfg.C, bias=cfg.bias)

    def forward(self, x: torch.Tensor, shared: ForwardPass | None = None, *, place: int = 0) -> torch.Tensor:
        """Map x (..., C) to (..., C)."""
        shared = shared or ForwardPass.of(self, x, self.cfg.dropout)
        fc1 = self.fc1
        if self.cfg.activation == "relu2":
            h = F.relu(fc1(x)).square()
        elif self.cfg.activation == "swiglu":
            h = F.silu(self.gate(x)) * fc1(x)
        else:
            kernels = dispatch.training_kernels(fc1, x)
            h = dispatch.gelu(fc1(x)) if kernels is None else kernels.project_and_gelu(fc1, x)
        return shared.dropped(self.fc2(h), place=place)


class Block(nn.Module):
    """Transformer block: x + attn(norm(x)), then x + mlp(norm(x)). Uses the dropout sites `place` to `place + 2`."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.ln1 = build_norm(cfg)
        self.attn = CausalSelfAttention(cfg)
        self.ln2 = build_norm(cfg)
        self.mlp = MLP(cfg)

    def forward(
        self, x: torch.Tensor, shared: ForwardPass | None = None, *, place: int = 0, return_attn: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Map x (B, T, C) to (B, T, C); with `return_attn` also return the attention probabilities (B, H, T, T)."""
        shared = shared or ForwardPass.of(self, x, self.attn.cfg.dropout)
        x, normed = self.ln1(x)
        out = self.attn(normed, shared, place=place, return_attn=return_attn)
        out, attn = out if return_attn else (out, None)
        x, normed = self.ln2(x, out)
        x = x + self.mlp(normed, shared, place=place + 2)
        return x if attn is None else (x, attn)


def init_weights(module: nn.Module) -> None:
    """Initialize matrices and embeddings with N(0, 0.02), biases with 0, norm weights with 1. For `module.apply`."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, mean=0.0, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.LayerNorm):
        module.reset_parameters()
