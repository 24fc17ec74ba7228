"""One training step: forward, backward, gradient clipping, update; call by call or as a CUDA graph."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import nn
from torch.nn import functional as F

from niels_gpt.config import TrainConfig
from niels_gpt.eval.held_out import token_losses
from niels_gpt.lr_schedule import scheduled_momentum
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import computing_in, record, residual_dtype, settle_bf16, warm_up
from niels_gpt.rng import derive_seed
from niels_gpt.train.optimizer import (
    build_optimizers,
    forget_optimizer_state,
    load_optimizer_state,
    optimizer_state,
    set_lr,
    set_momentum,
)
from niels_gpt.train.task import Batch, Execution, compiler_options, wants_compiler

# A training step call by call, with gradient accumulation and mixed precision. The other steps are made of it.


class SummedLoss(nn.Module):
    """The sum of a batch's losses. The embedding stays outside of what is compiled: compiled, its gradient is summed in
    an order that changes from run to run."""

    def __init__(self, model: GPT, *, cfg: TrainConfig, execution: Execution) -> None:
        super().__init__()
        self.model, self._cfg, self._device = model, cfg, execution.device
        self._hidden: Callable[..., torch.Tensor] = self._computed_hidden
        if wants_compiler(execution):
            self._hidden = torch.compile(self._computed_hidden, options=compiler_options(execution))

    def forward(self, x: torch.Tensor, y: torch.Tensor, **rows: torch.Tensor) -> torch.Tensor:
        """`rows`: position_ids, segment_ids, row_keys."""
        h = self.model.embed(x, dtype=residual_dtype(self._cfg.precision))
        return self.model.summed_loss(self._hidden(h, **rows), y)

    def of_tokens(self, x: torch.Tensor, y: torch.Tensor, **rows: torch.Tensor) -> torch.Tensor:
        """The loss of each token, (B, T): what validation asks for."""
        h = self.model.embed(x, dtype=residual_dtype(self._cfg.precision))
        return self.model.token_losses(self._hidden(h, **rows), y)

    def _computed_hidden(self, h: torch.Tensor, **rows: Any) -> torch.Tensor:
        with computing_in(self._cfg.precision, self._device):
            return self.model.hidden(h, **rows).to(h.dtype)


class PlainStep:
    """The step for every device and setting; one recorded as a CUDA graph is faster where it fits."""

    def __init__(
        self,
        model: GPT,
        cfg: TrainConfig,
        execution: Execution,
        *,
        state: Mapping[str, Any] | None,
        capturable: bool = False,
    ) -> None:
        self._model, self._cfg, self._execution = model, cfg, execution
        self._optimizers = build_optimizers(model, cfg, capturable=capturable)
        if state is not None:
            load_optimizer_state(self._optimizers, state)
        # Of the step at hand, on the device: a recorded step reads it there.
        self._key = torch.zeros((), dtype=torch.int64, device=execution.device) if model.cfg.dropout else None
        self._loss: nn.Module = SummedLoss(model, cfg=cfg, execution=execution)
        if execution.ranks.size > 1:
            self._loss = nn.parallel.DistributedDataParallel(self._loss)

    def __call__(self, batch: Batch, *, lr: float, n: int) -> torch.Tensor:
        self._prepare(lr, n)
        return self._update(batch.to(self._execution.device))

    def optimizer_state(self) -> dict[str, Any]:
        return optimizer_state(self._optimizers)

    def validated(self, model: GPT) -> nn.Module:
        return model

    def _prepare(self, lr: float, n: int) -> None:
        set_lr(self._optimizers, lr)
        set_momentum(self._optimizers, scheduled_momentum(self._cfg, n))
        self._model.train()
        if self._key is not None:
            self._key.fill_(derive_seed(self._cfg.seed, "dropout", n))

    def _update(self, batch: Batch) -> torch.Tensor:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss = self._backward(batch)
        nn.utils.clip_grad_norm_(self._model.parameters(), self._cfg.grad_clip)
        for optimizer in self._optimizers:
            optimizer.step()
        return loss

    def _backward(self, batch: Batch) -> torch.Tensor:
        """Give the parameters their gradients; the loss."""
        total = torch.zeros((), device=batch.x.device)
        pieces = list(self._pieces(batch))
        for i, piece in enumerate(pieces):
            with self._without_sync(last=i == len(pieces) - 1):
                loss = self._loss(**piece) / batch.targets
                # DDP takes the mean over ranks; the sum is meant, since each has its part of one mean.
                (loss * self._execution.ranks.size).backward()
            total += loss.detach()
        return total

    def _pieces(self, batch: Batch) -> Iterator[dict[str, torch.Tensor]]:
        """Micro-batches for gradient accumulation: equal parts of as many rows as may go through the model at once."""
        rows, T = batch.x.shape
        limit, inputs = self._execution.micro_batch_tokens, self._inputs(batch)
        parts = 1 if limit is None else -(-rows // max(1, limit // T))
        for values in zip(*(tensor.tensor_split(parts) for tensor in inputs.values()), strict=True):
            yield dict(zip(inputs, values, strict=True))

    def _inputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """What the loss takes; with dropout also a key for each row, which goes with it wherever it is worked on."""
        return batch.tensors if self._key is None else {**batch.tensors, "row_keys": self._key + batch.row_numbers}

    def _without_sync(self, *, last: bool) -> AbstractContextManager[object]:
        """Gradients travel between ranks once a step, with the last part."""
        if last or not isinstance(self._loss, nn.parallel.DistributedDataParallel):
            return nullcontext()
        context: AbstractContextManager[object] = self._loss.no_sync()
        return context


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
