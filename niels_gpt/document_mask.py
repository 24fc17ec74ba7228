"""Windows of several documents, none of which sees another."""

from __future__ import annotations

import torch
from torch import nn

from niels_gpt.model.gpt import GPT


def document_segments(x: torch.Tensor, *, document_end: int) -> torch.Tensor:
    """Which document of its window each token (B, T) is of: 0, 1, ... Every document ends with its own `document_end`,
    a token that no text encodes to."""
    ends = (x == document_end).long()
    return ends.cumsum(-1) - ends


class DocumentMasked(nn.Module):
    """The model as it sees such windows."""

    def __init__(self, model: GPT, *, document_end: int) -> None:
        super().__init__()
        self.model, self._document_end = model, document_end

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(x, segment_ids=document_segments(x, document_end=self._document_end))
        return logits
