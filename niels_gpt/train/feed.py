"""Prefetch: the batches of a run, in order, sampled before they are asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor

from niels_gpt.train.task import ALL, Batch, Task

_AHEAD = 8


def batches(task: Task, steps: range, *, device: str, rows: slice = ALL) -> Generator[Batch]:
    """Yield these rows of batch n for n in `steps`, on the CPU. For a GPU a thread prefetches them into pinned memory.

    On the CPU itself a second thread would only take time from the matrix products.
    """
    if not device.startswith("cuda"):
        yield from (task.batch(n, rows) for n in steps)
        return

    def pinned(n: int) -> Batch:
        return task.batch(n, rows).pinned()

    thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
    ahead: deque[Future[Batch]] = deque()
    try:
        for n in steps:
            ahead.append(thread.submit(pinned, n))
            if len(ahead) > _AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        thread.shutdown(cancel_futures=True)
