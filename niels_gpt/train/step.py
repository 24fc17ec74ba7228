"""One training step (forward, backward, gradient clipping, update), launched call by call or as a CUDA graph."""

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F

from niels_gpt.config import TrainConfig
from niels_gpt.eval.held_out import token_losses
from niels_gpt.lr_schedule import scheduled_momentum
from niels_gpt.model.gpt import GPT
from niels_gpt.model.loss import SoftTargets
from niels_gpt.model.precision import computing_in, record, settle_bf16, warm_up
from niels_gpt.rng import derive_seed
from niels_gpt.train.optimizer import build_optimizers, load_optimizer_state, optimizer_state, set_rates
from niels_gpt.train.task import Batch, Execution, wants_compiler


class SummedLoss(nn.Module):
    """Model and summed cross-entropy of a batch, compiled if wanted.

    The embedding is not compiled: torch.compile sums its gradient in an order that changes from run to run. The
    probabilities of a `teacher`, a model in eval mode, are mixed with share cfg.teacher into the targets.
    """

    def __init__(self, model: GPT, *, cfg: TrainConfig, execution: Execution, teacher: GPT | None = None) -> None:
        super().__init__()
        self.model, self._cfg, self._device = model, cfg, execution.device
        self._hidden = self._compiled(model, execution)
        # In a tuple, so that it is no submodule: its weights are not trained, and not synchronized between ranks.
        self._teacher = (teacher, self._compiled(teacher, execution)) if teacher else None

    def forward(self, x: torch.Tensor, y: torch.Tensor, **rows: torch.Tensor) -> torch.Tensor:
        """Return the summed loss in nats of inputs x (B, T) and targets y (B, T).

        `rows`: position_ids, segment_ids, row_keys.
        """
        h, soft = self._hidden(x, **rows), None
        if self._teacher is not None:
            teacher, hidden = self._teacher
            rows.pop("row_keys", None)  # a teacher drops nothing
            with torch.no_grad():
                states = hidden(x, **rows)
            soft = SoftTargets(states, teacher.lm_head.weight, teacher.cfg.logit_cap, alpha=self._cfg.teacher)
        return self.model.summed_loss(h, y, soft)

    def of_tokens(self, x: torch.Tensor, y: torch.Tensor, **rows: torch.Tensor) -> torch.Tensor:
        """Return the loss of each token (B, T) in nats, for validation."""
        return self.model.token_losses(self._hidden(x, **rows), y)

    def _compiled(self, model: GPT, execution: Execution) -> Callable[..., torch.Tensor]:
        def hidden(h: torch.Tensor, **rows: Any) -> torch.Tensor:
            with computing_in(self._cfg.precision, self._device):
                return model.hidden(h, **rows).to(h.dtype)

        # Combining the many small kernels that cast weights saves 8% of a step at the smallest size.
        options: dict[str, Any] = {"combo_kernels": True, "benchmark_combo_kernel": False} if execution.cuda else {}
        compiled = torch.compile(hidden, options=options) if wants_compiler(execution) else hidden
        dtype = torch.bfloat16 if self._cfg.precision == "bf16" else torch.float32
        return lambda x, **rows: compiled(model.embed(x, dtype=dtype), **rows)


class PlainStep:
    """Training step without a CUDA graph, for every device, with gradient accumulation, mixed precision and DDP."""

    _capturable = False  # whether a CUDA graph reads the optimizers' settings

    def __init__(
        self,
        model: GPT,
        cfg: TrainConfig,
        execution: Execution,
        *,
        state: Mapping[str, Any] | None,
        teacher: GPT | None = None,
    ) -> None:
        self._model, self._cfg, self._execution = model, cfg, execution
        model.freeze(cfg.freeze_blocks)
        self._optimizers = build_optimizers(model, cfg, capturable=self._capturable)
        self._trained = [p.detach() for p in model.parameters() if p.requires_grad]
        self._averages = [torch.zeros_like(p) for p in self._trained] if cfg.average else []
        self._load_state(state)
        # Dropout key of the current step, on the device, where a recorded step reads it.
        self._key = torch.zeros((), dtype=torch.int64, device=execution.device) if model.cfg.dropout else None
        self._loss: nn.Module = SummedLoss(model, cfg=cfg, execution=execution, teacher=teacher)
        if execution.ranks.size > 1:
            self._loss = nn.parallel.DistributedDataParallel(self._loss)

    def __call__(self, batch: Batch, *, lr: float, n: int) -> torch.Tensor:
        """Train on this rank's rows of batch n; return their part of the batch's mean loss, 0-d, on the device."""
        self._prepare(lr, n)
        return self._update(batch.to(self._execution.device))

    def optimizer_state(self) -> dict[str, Any]:
        """Return the state of the optimizers and the averages, for a checkpoint."""
        return {**optimizer_state(self._optimizers), **({"averages": self._averages} if self._averages else {})}

    @contextmanager
    def averaged(self, n: int) -> Iterator[None]:
        """Give the model its averaged weights, those after n steps, within the context; in place, for CUDA graphs."""
        if not self._averages:
            yield
            return
        weights = [p.clone() for p in self._trained]
        # The averages start at 0, so they are too small by this factor.
        torch._foreach_copy_(self._trained, torch._foreach_div(self._averages, 1 - self._cfg.average**n))
        try:
            yield
        finally:
            torch._foreach_copy_(self._trained, weights)

    def _load_state(self, state: Mapping[str, Any] | None) -> None:
        """Go back to the state that a run resumes from, or to that before the first step."""
        load_optimizer_state(self._optimizers, state)
        if self._averages and state is not None:
            torch._foreach_copy_(self._averages, state["averages"])
        elif self._averages:
            torch._foreach_zero_(self._averages)

    def validated(self, model: GPT) -> nn.Module:
        """Wrap the model for validation; may return a RecordedModel."""
        return model

    def _prepare(self, lr: float, n: int) -> None:
        set_rates(self._optimizers, lr=lr, momentum=scheduled_momentum(self._cfg, n))
        self._model.train()
        if self._key is not None:
            self._key.fill_(derive_seed(self._cfg.seed, "dropout", n))

    def _update(self, batch: Batch) -> torch.Tensor:
        self._model.zero_grad()
        loss = self._backward(batch)
        nn.utils.clip_grad_norm_(self._model.parameters(), self._cfg.grad_clip)
        for optimizer in self._optimizers:
            optimizer.step()
        if self._averages:
            torch._foreach_lerp_(self._averages, self._trained, 1 - self._cfg.average)
        return loss

    def _backward(self, batch: Batch) -> torch.Tensor:
        """Accumulate the gradients of this rank's rows; return their part of the batch's mean loss."""
        total, ranks = torch.zeros((), device=batch.x.device), self._execution.ranks
        pieces = list(self._pieces(batch))
        for i, piece in enumerate(pieces):
            # DDP synchronizes the gradients of the last micro-batch of a step only.
            apart = ranks.size > 1 and i < len(pieces) - 1
            with cast(nn.parallel.DistributedDataParallel, self._loss).no_sync() if apart else nullcontext():
                loss = self._loss(**piece) / batch.targets
                # It averages over ranks, but the parts of one mean have to be summed.
                (loss * ranks.size).backward()
            total += loss.detach()
        return total

    def _pieces(self, batch: Batch) -> Iterator[dict[str, torch.Tensor]]:
        """Yield micro-batches of about equal size, within execution.micro_batch_tokens but at least one row."""
        inputs = batch.tensors
        if self._key is not None:
            inputs["row_keys"] = self._key + batch.row_numbers  # for dropout; the same whichever rank has the row
        rows, T = batch.x.shape
        limit = self._execution.micro_batch_tokens
        parts = 1 if limit is None else -(-rows // max(1, limit // T))
        for values in zip(*(tensor.tensor_split(parts) for tensor in inputs.values()), strict=True):
            yield dict(zip(inputs, values, strict=True))


class RecordedModel(nn.Module):
    """Scorer that replays a CUDA graph for batches of the training shape, and calls the model for all others."""

    def __init__(self, loss: SummedLoss, *, shape: torch.Size, pool: Any) -> None:
        """Share the memory `pool` of the recorded training step, which does not run meanwhile."""
        super().__init__()
        self._loss, self._shape, self._pool = loss, shape, pool
        # By names of the inputs: the tensors that a graph reads, the graph, and the losses that it writes.
        self._recordings: dict[tuple[str, ...], tuple[dict[str, torch.Tensor], torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def losses(self, x: torch.Tensor, y: torch.Tensor, **ids: torch.Tensor) -> torch.Tensor:
        """Return the loss of each token (B, T) in nats; batches with fewer rows than in training are padded."""
        B, T = self._shape
        if x.shape[1] != T or len(x) > B:
            return token_losses(self._loss.model, x, y, **ids)  # other sizes would each be compiled
        inputs = {name: F.pad(value, (0, 0, 0, B - len(value))) for name, value in {"x": x, "y": y, **ids}.items()}
        if tuple(inputs) not in self._recordings:
            own = {name: value.clone() for name, value in inputs.items()}
            compute = partial(self._loss.of_tokens, **own)
            warm_up(compute)
            self._recordings[tuple(inputs)] = (own, *record(compute, pool=self._pool))
        own, graph, losses = self._recordings[tuple(inputs)]
        for name, value in inputs.items():
            own[name].copy_(value)
        graph.replay()
        return losses.clone()[: len(x)]


class GraphStep(PlainStep):
    """Training step recorded as one CUDA graph.

    Between steps Python only copies in the batch, the learning rates, the momentum and the dropout key.
    """

    _capturable = True
    _graph: torch.cuda.CUDAGraph | None = None

    def _load_state(self, state: Mapping[str, Any] | None) -> None:
        super()._load_state(state)
        self._first_state = state  # recording trains some steps and goes back to it

    def __call__(self, batch: Batch, *, lr: float, n: int) -> torch.Tensor:
        if self._graph is None:
            self._graph = self._recorded_step(batch)
        self._batch.packed.copy_(batch.packed, non_blocking=True)
        self._prepare(lr, n)
        self._graph.replay()
        return self._loss_value.clone()

    def validated(self, model: GPT) -> nn.Module:
        """Return a RecordedModel. Call it only after a step, whose memory it shares."""
        return self._recorded_model

    def _recorded_step(self, batch: Batch) -> torch.cuda.CUDAGraph:
        """Record the step after warm-up steps, whose changes to weights and optimizer state are undone."""
        self._batch = batch.to(self._execution.device)
        weights = copy.deepcopy(self._model.state_dict())
        self._model.train()
        warm_up(lambda: self._update(self._batch), times=3)
        self._model.load_state_dict(weights)
        self._load_state(self._first_state)
        self._model.zero_grad()
        graph, self._loss_value = record(lambda: self._update(self._batch))
        loss = cast(SummedLoss, self._loss)
        self._recorded_model = RecordedModel(loss, shape=self._batch.x.shape, pool=graph.pool())
        return graph


def build_step(
    model: GPT,
    cfg: TrainConfig,
    execution: Execution,
    *,
    state: Mapping[str, Any] | None,
    teacher: GPT | None = None,
) -> PlainStep:
    """Return the fastest step for this device. `state`: the optimizers' state of a run to resume."""
    if cfg.precision == "bf16":
        settle_bf16(execution.device, say=execution.say)
    # Up to T=256 the fastest GPU attention sums its gradients in a fixed order. Beyond it, runs are the same to the bit
    # only with deterministic algorithms, which cost 6% of a step at T=1024.
    if execution.cuda and execution.deterministic and model.cfg.T > 256:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch asks for it
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    kind = GraphStep if execution.cuda and execution.ranks.size == 1 else PlainStep
    return kind(model, cfg, execution, state=state, teacher=teacher)
