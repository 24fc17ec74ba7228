"""The model: embedding, L blocks, norm, and a head that shares the embedding's weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from niels_gpt.config import ModelConfig
from niels_gpt.model.blocks import Block, init_weights


class GPT(nn.Module):
    """Decoder-only transformer. `config` is a ModelConfig, or the dict of one as a checkpoint stores it."""

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__()
        self.cfg = config if isinstance(config, ModelConfig) else ModelConfig.from_dict(config)
        self.tok_emb = nn.Embedding(self.cfg.V, self.cfg.C)
        self.dropout = nn.Dropout(self.cfg.dropout)
        self.blocks = nn.ModuleList(Block(self.cfg) for _ in range(self.cfg.L))
        self.ln_f = nn.LayerNorm(self.cfg.C)
        self.lm_head = nn.Linear(self.cfg.C, self.cfg.V, bias=False)
        self.lm_head.weight = self.tok_emb.weight
        self.apply(init_weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Token ids (B, T) -> logits (B, T, V) in float32. T may be shorter than cfg.T, not longer."""
        if x.shape[1] > self.cfg.T:
            raise ValueError(f"{x.shape[1]} tokens do not fit the context of T={self.cfg.T}")
        h = self.dropout(self.tok_emb(x))  # (B, T, C)
        for block in self.blocks:
            h = block(h)
        logits: torch.Tensor = self.lm_head(self.ln_f(h))
        return logits.float()

    def parameter_count(self) -> int:
        """Trainable numbers, the tied weight counted once."""
        return sum(p.numel() for p in self.parameters())
