"""One training step: forward, backward, gradient clipping, update; and which of the ways to do it a run takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from niels_gpt.config import TrainConfig
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import settle_bf16
from niels_gpt.train.execution import Execution
from niels_gpt.train.graph_step import GraphStep
from niels_gpt.train.plain_step import PlainStep
from niels_gpt.train.task import Batch

# Up to this context the fastest attention on a GPU sums its gradients in one order. Beyond, two runs are equal to the
# bit only with a slower one: 6% of a step at T=1024.
_ORDERED_T = 256


class Step(Protocol):
    def __call__(self, batch: Batch, *, lr: float, n: int) -> torch.Tensor:
        """Train on the rows of a batch that are this rank's; their part of the batch's mean loss, on the device."""
        ...

    def optimizer_state(self) -> dict[str, Any]: ...

    def validated(self, model: GPT) -> nn.Module:
        """Wrap the model for validation; may return a Scorer."""
        ...


def build_step(model: GPT, cfg: TrainConfig, execution: Execution, *, state: Mapping[str, Any] | None) -> Step:
    """Return the fastest step for this device. `state`: the optimizers' state of a run to resume."""
    if cfg.precision == "bf16":
        settle_bf16(execution.device, say=execution.say)
    if execution.cuda and execution.deterministic and model.cfg.T > _ORDERED_T:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch asks for it
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if execution.cuda and execution.ranks.size == 1:
        return GraphStep(model, cfg, execution, state=state)
    return PlainStep(model, cfg, execution, state=state)
