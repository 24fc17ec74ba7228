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
from niels_gpt.model.dropout import NO_DROPOUT, RowDropout
from niels_gpt.model.kernels import attention_cpu
from niels_gpt.model.places import Places

# Up to this context bf16 attention on a CPU is written out: matrix products, for which the chip has units, take a third
# of the time of torch's fused CPU kernel, forward and backward. Further on the T*T scores cost too much memory.
_WRITTEN_OUT_T = 512


class CausalSelfAttention(nn.Module):
    """H heads of causal attention with rotary positions. The normal path is torch's fused kernel.

    Dropout falls on values: a head does not hear a position. Measured, that is as good as on the probabilities, which
    are to be had in no fused kernel: 1.446 and 1.441 nats on held-out text at p=0.1, and without either 1.48.
    """

    rope_sin: torch.Tensor
    rope_cos: torch.Tensor

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.qkv = nn.Linear(cfg.C, 3 * cfg.C)
        self.proj = nn.Linear(cfg.C, cfg.C)
        sin, cos = rope.rope_cache(cfg.T, cfg.D, theta=cfg.rope_theta)
        # A function of the configuration: not part of the weights.
        self.register_buffer("rope_sin", sin, persistent=False)
        self.register_buffer("rope_cos", cos, persistent=False)

    def forward(
        self,
        x: torch.Tensor,
        *,
        dropout: RowDropout = NO_DROPOUT,
        place: int = 0,
        places: Places | None = None,
        return_attn: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """x (B, T, C) -> (B, T, C); with `return_attn` also the probabilities (B, H, T, T)."""
        B, T, C = x.shape
        if places is None and _compiled_for_gpu(x):
            from niels_gpt.model.kernels.rope_triton import (
                split_and_rotate,  # only where there is a GPU is there a Triton
            )

            qkv = F.linear(x, self.qkv.weight)
            q, k, v = split_and_rotate(qkv, self.qkv.bias, self.rope_sin, self.rope_cos, H=self.cfg.H)
        else:
            qkv = self.qkv(x)
            if places is None and not return_attn and dropout is NO_DROPOUT and attention_cpu.pays(qkv):
                out = attention_cpu.rotate_and_attend(qkv, self.rope_sin, self.rope_cos, H=self.cfg.H)
                return cast(torch.Tensor, self.proj(out))
            parts = qkv.split(C, dim=-1)
            q, k, v = (part.view(B, T, self.cfg.H, self.cfg.D).transpose(1, 2) for part in parts)  # (B, H, T, D) each
            sin, cos = (self.rope_sin, self.rope_cos) if places is None else (places.sin, places.cos)
            q, k = rope.apply_rope(q, k, sin, cos)
        v = dropout.on_vectors(v, place=place)
        mask = None if places is None else places.mask
        attn = q.new_empty(0)
        if return_attn or (q.device.type == "cpu" and q.dtype == torch.bfloat16 and T <= _WRITTEN_OUT_T):
            attn = _probabilities(q, k, mask)
            out = attn @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        out = self.proj(out.transpose(1, 2).reshape(B, T, C))
        return (out, attn) if return_attn else out


def _compiled_for_gpu(x: torch.Tensor) -> bool:
    """Where the kernels of this project take over what a compiler does not do well by itself."""
    return x.is_cuda and torch.compiler.is_compiling()


def _probabilities(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Attention weights (B, H, T, T): the sum inside the fused kernel, which keeps it to itself."""
    T = q.shape[2]
    if mask is None:
        mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    hidden = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, float("-inf"))
    scores = q * (1 / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    return (scores + hidden).softmax(dim=-1)


class MLP(nn.Module):
    """C -> d_ff -> C with GELU."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(cfg.C, cfg.d_ff)
        self.fc2 = nn.Linear(cfg.d_ff, cfg.C)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if _compiled_for_gpu(x):
            from niels_gpt.model.kernels.gelu_triton import biased_gelu

            h = biased_gelu(F.linear(x, self.fc1.weight), self.fc1.bias)
        else:
            h = F.gelu(self.fc1(x))
        return cast(torch.Tensor, self.fc2(h))


class Block(nn.Module):
    """x + attn(norm(x)), then + mlp(norm(x)), with dropout on what is added: `place` and the next two are its own."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(cfg.C)
        self.attn = CausalSelfAttention(cfg)
        self.ln2 = nn.LayerNorm(cfg.C)
        self.mlp = MLP(cfg)

    def forward(
        self,
        x: torch.Tensor,
        *,
        dropout: RowDropout = NO_DROPOUT,
        place: int = 0,
        places: Places | None = None,
        return_attn: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """x (B, T, C) -> (B, T, C); with `return_attn` also the attention probabilities."""
        attended = self.attn(self.ln1(x), dropout=dropout, place=place, places=places, return_attn=return_attn)
        out, attn = attended if return_attn else (attended, None)
        x = x + dropout.on(out, place=place + 1)
        x = x + dropout.on(self.mlp(self.ln2(x)), place=place + 2)
        return x if attn is None else (x, attn)


def init_weights(module: nn.Module) -> None:
    """N(0, 0.02) for matrices and embeddings, 0 for biases, 1 and 0 for norms. For `module.apply`."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, mean=0.0, std=0.02)
    if isinstance(module, nn.LayerNorm):
        nn.init.ones_(module.weight)
    bias = getattr(module, "bias", None)
    if isinstance(module, nn.Linear | nn.LayerNorm) and bias is not None:
        nn.init.zeros_(bias)
