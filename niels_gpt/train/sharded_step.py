"""A training step of a model that no rank has whole (FSDP2): weights, gradients and optimizer state are shared out.

Each rank keeps its part of every matrix. Before a block computes, its weights are put together on all ranks, and let go
of afterwards; gradients are summed to whoever has the part. Of 16 bytes a parameter a rank holds its share of 16, and
pays with traffic: half as much again as data parallelism.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, cast

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from niels_gpt.config import TrainConfig
from niels_gpt.model.gpt import GPT
from niels_gpt.train.execution import Execution, compiler_options, wants_compiler
from niels_gpt.train.optimizer import load_optimizer_state
from niels_gpt.train.plain_step import PlainStep, SummedLoss
from niels_gpt.train.sharded_state import StoredRun, read_parts
from niels_gpt.train.state import RunState

_MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's


class ShardedStep(PlainStep):
    """The given model stays whole, to validate with and to be written at the end; between, it waits in the CPU's
    memory, and a copy of it is shared out."""

    def __init__(self, model: GPT, cfg: TrainConfig, execution: Execution, *, state: RunState | None) -> None:
        if cfg.optimizer != "adamw":
            raise ValueError(
                f"{cfg.optimizer} needs whole matrices, which runtime.shard_model shares out: set it to false, or "
                "optimizer to adamw"
            )
        ranks = execution.ranks
        for parameter in model.parameters():  # as DDP does: the first rank's weights are everybody's
            distributed.broadcast(parameter.detach(), src=0)
        self._mesh = init_device_mesh(execution.device.partition(":")[0], (ranks.size,))
        shared_out = copy.deepcopy(model)
        loss = _share_out(shared_out, cfg, execution, mesh=self._mesh)
        super().__init__(shared_out, cfg, execution, state=None, loss=loss)
        self._whole = model.cpu()
        if state is not None:
            self._restore(state)

    @property
    def _parameters(self) -> dict[str, DTensor]:
        return {name: cast(DTensor, parameter.detach()) for name, parameter in self._model.named_parameters()}

    def weights(self) -> dict[str, Any]:
        """This rank's parts, by name; the tied weight once."""
        return dict(self._parameters)

    @contextmanager
    def whole_model(self) -> Iterator[GPT]:
        """Put together from all parts: every rank must ask for it."""
        self._whole.to(self._execution.device)
        self._fill_whole(self._parameters)
        yield self._whole
        self._whole.cpu()

    def assembled(self, run: RunState) -> RunState:
        """With whole weights, as they are written out; the model is left with those of the end."""
        if run.best_model is not None:
            self._fill_whole(run.best_model)
            run.best_model = copy.deepcopy(self._whole.state_dict())
        self._fill_whole(self._parameters)
        run.model = self._whole.state_dict()
        return run

    def _fill_whole(self, parts: Mapping[str, DTensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._whole.named_parameters():
                parameter.copy_(parts[name].full_tensor())

    def _restore(self, run: RunState) -> None:
        """A state of parts is read from where it lies, by each rank its own; of a whole one, ranks keep their parts."""
        if isinstance(run, StoredRun):
            run.optimizer = {"0": {i: self._no_moments(p) for i, p in enumerate(self._in_order())}}
            if run.best_step is not None:
                run.best_model = {name: torch.zeros_like(part) for name, part in self._parameters.items()}
            run.model = self.weights()
            read_parts(run, ranks=self._execution.ranks)
        else:
            run.optimizer = _each(run.optimizer, self._part_of)
            run.best_model = run.best_model and {name: self._part_of(run.best_model[name]) for name in self._parameters}
        load_optimizer_state(self._optimizers, run.optimizer)

    def _in_order(self) -> list[torch.Tensor]:
        """Parameters by the optimizer's numbers."""
        return [parameter for group in self._optimizers[0].param_groups for parameter in group["params"]]

    @staticmethod
    def _no_moments(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        moments = {name: torch.zeros_like(parameter.detach()) for name in _MOMENTS}
        return {"step": torch.zeros((), device=parameter.device), **moments}

    def _part_of(self, whole: torch.Tensor) -> torch.Tensor:
        if whole.dim() == 0:  # a count of steps
            return whole
        return distribute_tensor(whole.to(self._execution.device), self._mesh, [Shard(0)], src_data_rank=None)

    def _parts(self, rows: int, T: int) -> int:
        """As many micro-batches on every rank, whose rows may differ by one: they put weights together in step."""
        B, size = self._cfg.B, self._execution.ranks.size
        return min(super()._parts(-(-B // size), T), B // size)

    def _without_sync(self, *, last: bool) -> AbstractContextManager[object]:
        cast(FSDPModule, self._loss).set_requires_gradient_sync(last)
        return nullcontext()


def _share_out(model: GPT, cfg: TrainConfig, execution: Execution, *, mesh: DeviceMesh) -> nn.Module:
    """The loss of a model whose blocks are put together one at a time, and the rest (embedding, head, last norm) with
    the first. Blocks are compiled one by one: the compiler does not look through what puts them together."""
    loss = SummedLoss(model, cfg=cfg, execution=replace(execution, compile=False))
    compiling = wants_compiler(execution)
    for block in model.blocks:
        if compiling:
            block.forward = torch.compile(block.forward, options=compiler_options(execution))
        fully_shard(block, mesh=mesh)
    fully_shard(loss, mesh=mesh)
    return loss


def _each(tree: Any, act: Any) -> Any:
    return {key: _each(value, act) for key, value in tree.items()} if isinstance(tree, Mapping) else act(tree)
