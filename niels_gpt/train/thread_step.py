"""A step on a CPU in which every core takes its own rows through the model.

Where cores share each product instead, they wait for one another after every one of them, and read from memory what
another core has in its cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from niels_gpt.config import TrainConfig
from niels_gpt.model.gpt import GPT
from niels_gpt.train.execution import Execution
from niels_gpt.train.plain_step import PlainStep
from niels_gpt.train.ranks import Ranks
from niels_gpt.train.task import Batch

_PART_NUMBERS = 1 << 18  # of the residual stream in a thread's part; with less, threads wait for the interpreter
_GRADIENT_BYTES = 1 << 30  # of all parts together


def threads_pay(model: GPT, cfg: TrainConfig, execution: Execution) -> bool:
    threads, shape = torch.get_num_threads(), model.cfg
    return (
        (execution.device, execution.ranks.size, execution.micro_batch_tokens) == ("cpu", 1, None)
        and execution.compile is not True
        and shape.dropout == 0  # its masks come from one generator, in the order in which they are asked for
        and threads > 1
        and cfg.B % threads == 0
        and cfg.B // threads * shape.T * shape.C >= _PART_NUMBERS
        and threads * model.parameter_count() * 4 <= _GRADIENT_BYTES
    )


class ThreadStep(PlainStep):
    """Equal rows for each thread; their gradients are added up in the order of the rows, whoever was ready first."""

    def __init__(self, model: GPT, cfg: TrainConfig, execution: Execution, *, state: Mapping[str, Any] | None) -> None:
        super().__init__(model, cfg, execution, state=state)
        threads = torch.get_num_threads()
        self._rows = [Ranks(rank=i, size=threads).rows(cfg.B) for i in range(threads)]
        self._pool = ThreadPoolExecutor(threads, "rows", initializer=_work_alone)

    def _backward(self, batch: Batch) -> torch.Tensor:
        with _one_thread_a_product():
            (total, grads), *others = self._pool.map(self._part, map(batch.take, self._rows))
        for loss, more in others:
            total += loss
            torch._foreach_add_(grads, more)
        for parameter, grad in zip(self._model.parameters(), grads, strict=True):
            parameter.grad = grad
        return total

    def _part(self, batch: Batch) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        loss = self._loss(**batch.tensors) / batch.targets
        return loss.detach(), torch.autograd.grad(loss, list(self._model.parameters()))


def _work_alone() -> None:
    """Settings of a thread: its products are its own, and so are the weights it has rounded to bf16."""
    torch.set_num_threads(1)
    torch.set_autocast_cache_enabled(False)


@contextmanager
def _one_thread_a_product() -> Iterator[None]:
    """For MKL, whose number of threads is the whole process's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
