"""A training step call by call, with gradient accumulation and mixed precision. The other steps are made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from niels_gpt.config import TrainConfig
from niels_gpt.lr_schedule import scheduled_momentum
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import computing_in, residual_dtype
from niels_gpt.rng import derive_seed
from niels_gpt.train.execution import Execution, compiler_options, wants_compiler
from niels_gpt.train.optimizer import build_optimizers, load_optimizer_state, optimizer_state, set_lr, set_momentum
from niels_gpt.train.task import Batch


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
