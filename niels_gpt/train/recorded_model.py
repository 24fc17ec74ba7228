"""A model as validation on a GPU calls it: compiled as in training, and recorded as one CUDA graph."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from niels_gpt.eval.held_out import token_losses
from niels_gpt.model.cuda_graph import record, warm_up
from niels_gpt.train.plain_step import SummedLoss


class RecordedModel(nn.Module):
    """The losses of batches of one size are replayed; everything else goes through the model itself."""

    def __init__(self, loss: SummedLoss, *, shape: torch.Size, pool: Any) -> None:
        """`pool`: the memory of the recorded training step, which waits meanwhile."""
        super().__init__()
        self._loss, self._shape, self._pool = loss, shape, pool
        self._recordings: dict[tuple[str, ...], _Recording] = {}

    def forward(self, x: torch.Tensor, **ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._loss.model(x, **ids)
        return logits

    def losses(self, x: torch.Tensor, y: torch.Tensor, **ids: torch.Tensor) -> torch.Tensor:
        """As a Scorer: (B, T); fewer rows than those of a training batch are filled up."""
        B, T = self._shape
        if x.shape[1] != T or len(x) > B:
            return token_losses(self._loss.model, x, y, **ids)  # the compiler would be asked for every other size
        inputs = {name: F.pad(value, (0, 0, 0, B - len(value))) for name, value in {"x": x, "y": y, **ids}.items()}
        names = tuple(inputs)
        if names not in self._recordings:
            self._recordings[names] = _Recording(self._loss, inputs, pool=self._pool)
        return self._recordings[names](inputs)[: len(x)]


class _Recording:
    def __init__(self, loss: SummedLoss, inputs: dict[str, torch.Tensor], *, pool: Any) -> None:
        self._inputs = {name: value.clone() for name, value in inputs.items()}
        losses = partial(loss.of_tokens, **self._inputs)
        warm_up(losses)
        self._graph, self._losses = record(losses, pool=pool)

    def __call__(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        for name, value in inputs.items():
            self._inputs[name].copy_(value)
        self._graph.replay()
        return self._losses.clone()
