"""The parts of a block. Pre-norm, so that gradients reach the first block through the bare residual stream.

Shapes: B batch, T positions, C width, H heads, D = C/H.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import nn
from torch.nn import functional as F

from niels_gpt.config import ModelConfig
from niels_gpt.model import rope


class CausalSelfAttention(nn.Module):
    """H heads of causal attention with rotary positions. The normal path is torch's fused kernel."""

    rope_sin: torch.Tensor
    rope_cos: torch.Tensor

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.qkv = nn.Linear(cfg.C, 3 * cfg.C)
        self.proj = nn.Linear(cfg.C, cfg.C)
        self.resid_dropout = nn.Dropout(cfg.dropout)
        sin, cos = rope.rope_cache(cfg.T, cfg.D, theta=cfg.rope_theta)
        # A function of the configuration: not part of the weights.
        self.register_buffer("rope_sin", sin, persistent=False)
        self.register_buffer("rope_cos", cos, persistent=False)

    def forward(
        self, x: torch.Tensor, *, return_attn: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """x (B, T, C) -> (B, T, C); with `return_attn` also the pre-dropout probabilities (B, H, T, T)."""
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.cfg.H, self.cfg.D)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
        q, k = rope.apply_rope(q, k, self.rope_sin.to(q.dtype), self.rope_cos.to(q.dtype))
        dropout = self.cfg.dropout if self.training else 0.0
        if return_attn:
            # The fused kernel keeps its probabilities to itself; this is the same sum written out.
            scores = q @ k.transpose(-2, -1) / math.sqrt(self.cfg.D)
            future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
            attn = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
            out = F.dropout(attn, dropout) @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        out = self.resid_dropout(self.proj(out.transpose(1, 2).reshape(B, T, C)))
        return (out, attn) if return_attn else out


class MLP(nn.Module):
    """C -> d_ff -> C with GELU."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(cfg.C, cfg.d_ff)
        self.fc2 = nn.Linear(cfg.d_ff, cfg.C)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.dropout(self.fc2(F.gelu(self.fc1(x)))))


class Block(nn.Module):
    """x + attn(norm(x)), then + mlp(norm(x))."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(cfg.C)
        self.attn = CausalSelfAttention(cfg)
        self.ln2 = nn.LayerNorm(cfg.C)
        self.mlp = MLP(cfg)

    def forward(
        self, x: torch.Tensor, *, return_attn: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """x (B, T, C) -> (B, T, C); with `return_attn` also the attention probabilities."""
        if return_attn:
            out, attn = self.attn(self.ln1(x), return_attn=True)
            x = x + out
            return x + self.mlp(self.ln2(x)), attn
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


def init_weights(module: nn.Module) -> None:
    """N(0, 0.02) for matrices and embeddings, 0 for biases, 1 and 0 for norms. For `module.apply`."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, mean=0.0, std=0.02)
    if isinstance(module, nn.LayerNorm):
        nn.init.ones_(module.weight)
    bias = getattr(module, "bias", None)
    if isinstance(module, nn.Linear | nn.LayerNorm) and bias is not None:
        nn.init.zeros_(bias)
