"""The model, a decoder-only transformer: embedding, L blocks, final norm, and a head, by default tied."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

from niels_gpt.config import ModelConfig
from niels_gpt.model.blocks import Block, ForwardPass, build_norm, init_weights
from niels_gpt.model.kernels.dispatch import Embedding
from niels_gpt.model.loss import FusedLoss, SoftTargets, soft_cap, token_losses


class GPT(nn.Module):
    """Decoder-only transformer. `config` is a ModelConfig, or its dict as stored in a checkpoint."""

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
        if self.cfg.zero_init:  # every block starts as the identity; a tied head goes by the embedding's name
            for name, parameter in self.named_parameters():
                if name.endswith(("proj.weight", "fc2.weight", "lm_head.weight")):
                    nn.init.zeros_(parameter)

    def forward(self, x: torch.Tensor, **ids: torch.Tensor | None) -> torch.Tensor:
        """Map token ids (B, T) to logits (B, T, V) in float32, for T <= cfg.T.

        `ids`: position_ids and segment_ids, (B, T) each; by default positions are 0..T-1 and a row is one segment.
        """
        return self.logits(self.hidden(self.embed(x), **ids))

    def embed(self, x: torch.Tensor, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Map ids (B, T) to embeddings (B, T, C) in `dtype`, which becomes that of the residual stream."""
        on_gpu = x.is_cuda  # on a CPU the gradient is summed in a fixed order anyway
        return Embedding.apply(x, self.tok_emb.weight, dtype) if on_gpu else self.tok_emb(x).to(dtype)

    def hidden(
        self,
        h: torch.Tensor,
        *,
        position_ids: torch.Tensor | None = None,
        segment_ids: torch.Tensor | None = None,
        row_keys: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Apply the blocks and the final norm to embeddings h (B, T, C); return the input of `logits` (B, T, C).

        `row_keys` (B,) int64 determine each row's dropout in training; default: sampled from torch's generator.
        """
        positions = cast(Block, self.blocks[0]).attn.positions(position_ids, segment_ids)
        shared = ForwardPass.of(self, h, self.cfg.dropout, keys=row_keys)
        shared.positions = positions
        h = shared.dropped(h, place=0)
        for i, block in enumerate(self.blocks):
            h = block(h, shared, place=1 + 3 * i)
        return self.ln_f(h)[1]

    def logits(self, h: torch.Tensor) -> torch.Tensor:
        """Map final hidden states (..., C) to logits (..., V) in float32."""
        return soft_cap(self.lm_head(h).float(), self.cfg.logit_cap)

    def summed_loss(self, h: torch.Tensor, y: torch.Tensor, soft: SoftTargets | None = None) -> torch.Tensor:
        """Return the summed cross-entropy in nats of `logits(h)` at targets y (B, T), never holding all logits."""
        return FusedLoss.apply(h.flatten(0, -2), self.lm_head.weight, y.flatten(), (self.cfg.logit_cap, soft))

    def token_losses(self, h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy of each token (B, T) in nats, 0 at ignored targets, never holding all logits."""
        return token_losses(h, self.lm_head.weight, y, cap=self.cfg.logit_cap)

    def freeze(self, blocks: int) -> None:
        """Let no gradient be computed for the first `blocks` blocks and, above 0, the embedding; unfreeze the rest."""
        if blocks >= self.cfg.L:
            raise ValueError(
                f"freeze_blocks={blocks} leaves no block to train: the model has {self.cfg.L}, so lower it"
            )
        self.requires_grad_(True)
        self.tok_emb.requires_grad_(not blocks)
        self.blocks[:blocks].requires_grad_(False)

    def parameter_count(self) -> int:
        """Count the parameters, a tied weight once."""
        return sum(p.numel() for p in self.parameters())
