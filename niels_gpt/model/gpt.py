"""The model, a decoder-only transformer: embedding, L blocks, norm, and a head, which shares the embedding's weight
unless it is to have its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

from niels_gpt.config import ModelConfig
from niels_gpt.model.blocks import (
    Block,
    Shortcuts,
    build_norm,
    init_weights,
    module_dropout,
    positions_of,
    zero_outputs,
)
from niels_gpt.model.kernels import dispatch
from niels_gpt.model.loss import soft_cap, summed_loss, token_losses


class GPT(nn.Module):
    """`config` is a ModelConfig, or the dict of one as a checkpoint stores it."""

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__()
        self.cfg = config if isinstance(config, ModelConfig) else ModelConfig.from_dict(config)
        self.tok_emb = nn.Embedding(self.cfg.V, self.cfg.C)
        self.blocks = nn.ModuleList(Block(self.cfg) for _ in range(self.cfg.L))
        self.ln_f = build_norm(self.cfg)
        self.lm_head = nn.Linear(self.cfg.C, self.cfg.V, bias=False)
        if self.cfg.tied:
            self.lm_head.weight = self.tok_emb.weight
        self.apply(init_weights)
        if self.cfg.zero_init:
            self.apply(zero_outputs)
            if not self.cfg.tied:
                nn.init.zeros_(self.lm_head.weight)

    def forward(
        self,
        x: torch.Tensor,
        *,
        position_ids: torch.Tensor | None = None,
        segment_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Token ids (B, T) -> logits (B, T, V) in float32. T may be shorter than cfg.T, not longer.

        Positions are 0..T-1 and everything is one segment, unless (B, T) tensors say otherwise.
        """
        h = self.hidden(self.embed(x), position_ids=position_ids, segment_ids=segment_ids)
        return self.logits(h)

    def embed(self, x: torch.Tensor, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """(B, T) ids -> (B, T, C). The dtype is that of the residual stream from here on."""
        kernel = dispatch.embedding(x)
        h: torch.Tensor = self.tok_emb(x).to(dtype) if kernel is None else kernel(x, self.tok_emb.weight, dtype)
        return h

    def hidden(
        self,
        h: torch.Tensor,
        *,
        position_ids: torch.Tensor | None = None,
        segment_ids: torch.Tensor | None = None,
        row_keys: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The blocks and the last norm: from what `embed` gives to what `logits` takes, (B, T, C) both.

        `row_keys` (B,): what a row's dropout in training depends on; without them it is drawn from torch's generator.
        """
        attention = cast(Block, self.blocks[0]).attn
        positions = positions_of(
            sin=attention.rope_sin, cos=attention.rope_cos, position_ids=position_ids, segment_ids=segment_ids
        )
        dropout = module_dropout(self, h, self.cfg.dropout, keys=row_keys)
        h = dropout.on(h, place=0)
        shortcuts = Shortcuts(h)
        for i, block in enumerate(self.blocks):
            h = block(h, dropout=dropout, place=1 + 3 * i, positions=positions, shortcuts=shortcuts)
        normed: torch.Tensor = self.ln_f(h)[1]
        return normed

    def logits(self, h: torch.Tensor) -> torch.Tensor:
        """(..., C) -> (..., V) in float32."""
        return soft_cap(self.lm_head(h).float(), self.cfg.logit_cap)

    def summed_loss(self, h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Sum of the losses of `logits` at targets y (B, T), without ever holding all logits."""
        return summed_loss(h, self.lm_head.weight, y, cap=self.cfg.logit_cap)

    def token_losses(self, h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of each token, (B, T), likewise; 0 where a target does not count."""
        return token_losses(h, self.lm_head.weight, y, cap=self.cfg.logit_cap)

    def parameter_count(self) -> int:
        """Trainable numbers, a tied weight counted once."""
        return sum(p.numel() for p in self.parameters())
