"""A training step as one CUDA graph, which a GPU replays by itself."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

from niels_gpt.config import TrainConfig
from niels_gpt.model.cuda_graph import record, warm_up
from niels_gpt.model.gpt import GPT
from niels_gpt.train.execution import Execution
from niels_gpt.train.optimizer import forget_optimizer_state, load_optimizer_state
from niels_gpt.train.plain_step import PlainStep, SummedLoss
from niels_gpt.train.recorded_model import RecordedModel
from niels_gpt.train.task import Batch

_WARM_UP_STEPS = 3


class GraphStep(PlainStep):
    """The whole step recorded as one CUDA graph: between steps Python only hands over a batch, learning
    rates and momentum."""

    def __init__(self, model: GPT, cfg: TrainConfig, execution: Execution, *, state: Mapping[str, Any] | None) -> None:
        super().__init__(model, cfg, execution, state=state, capturable=True)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._state = state
        self._recorded: RecordedModel | None = None

    def __call__(self, batch: Batch, *, lr: float, n: int) -> torch.Tensor:
        if self._graph is None:
            self._batch = batch.to(self._execution.device)
            self._record()
        self._batch.copy_(batch)
        self._prepare(lr, n)
        assert self._graph is not None
        self._graph.replay()
        return self._loss_value.clone()

    def validated(self, model: GPT) -> nn.Module:
        """Only after a step: its memory serves both."""
        if self._recorded is None:
            assert self._graph is not None
            loss = cast(SummedLoss, self._loss)
            self._recorded = RecordedModel(loss, shape=self._batch.x.shape, pool=self._graph.pool())
        return self._recorded

    def _record(self) -> None:
        """Recording needs steps to have run, and those must leave no trace: weights and moments are put back."""
        weights = copy.deepcopy(self._model.state_dict())
        self._model.train()
        warm_up(lambda: self._update(self._batch), times=_WARM_UP_STEPS)
        self._model.load_state_dict(weights)
        if self._state is not None:
            load_optimizer_state(self._optimizers, self._state)
        else:
            forget_optimizer_state(self._optimizers)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._graph, self._loss_value = record(lambda: self._update(self._batch))
