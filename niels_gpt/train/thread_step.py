"""Data parallelism among the cores of a CPU: every core takes its own rows of the batch through the model.

Where cores share each matrix product instead, they wait for one another after every one of them, and read from memory
what another core has in its cache.
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
from niels_gpt.train.task import Batch

# Numbers of the residual stream in a thread's part, for each thread there is: with less to do, threads wait for the
# interpreter, which only one can have. Measured with two.
_PART_NUMBERS = 1 << 17
_GRADIENT_BYTES = 1 << 30  # of all threads together


def supports_threads(model: GPT, cfg: TrainConfig, execution: Execution) -> bool:
    """Whether batches can be shared out so that every thread does the same work, and the results stay the same."""
    threads = torch.get_num_threads()
    return (
        (execution.device, execution.ranks.size) == ("cpu", 1)
        and execution.micro_batch_tokens is None  # somebody wants less in memory at once, not more
        and execution.compile is not True  # the compiler is not made for several threads
        and threads > 1
        and cfg.B % threads == 0
        and threads * model.parameter_count() * 4 <= _GRADIENT_BYTES
    )


class ThreadStep(PlainStep):
    """Equal rows for each thread; gradients are added up in the order of the rows, whichever thread ends first."""

    def __init__(self, model: GPT, cfg: TrainConfig, execution: Execution, *, state: Mapping[str, Any] | None) -> None:
        super().__init__(model, cfg, execution, state=state)
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads, "rows")

    def _backward(self, batch: Batch) -> torch.Tensor:
        if batch.x.numel() * self._model.cfg.C < _PART_NUMBERS * self._threads**2:
            return super()._backward(batch)
        rows = batch.B // self._threads
        parts = [batch.take(slice(start, start + rows)) for start in range(0, batch.B, rows)]
        with _one_thread_a_product():
            (total, grads), *others = self._pool.map(self._part, parts)
        for loss, more in others:
            total += loss
            torch._foreach_add_(grads, more)
        for parameter, grad in zip(self._model.parameters(), grads, strict=True):
            parameter.grad = grad
        return total

    def _part(self, batch: Batch) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        # Settings of this thread: its products are its own, and so are the weights it rounds to bf16.
        torch.set_num_threads(1)
        torch.set_autocast_cache_enabled(False)
        loss = self._loss(**self._inputs(batch)) / batch.targets
        return loss.detach(), torch.autograd.grad(loss, list(self._model.parameters()))


@contextmanager
def _one_thread_a_product() -> Iterator[None]:
    """For MKL, whose number of threads is the whole process's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
