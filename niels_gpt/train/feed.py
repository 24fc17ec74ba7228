"""Prefetch: the batches of a run, in order, drawn before they are asked for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator

from niels_gpt.train.task import ALL, Batch, Task

_AHEAD = 8


def batches(task: Task, steps: range, *, device: str, rows: slice = ALL) -> Generator[Batch]:
    """These rows of batch n for n in `steps`, on the CPU. For a GPU a thread prefetches them into pinned memory.

    On the CPU itself a second thread would only take time from the matrix products.
    """
    if not device.startswith("cuda"):
        yield from (task.batch(n, rows) for n in steps)
        return
    ready: queue.Queue[Batch | BaseException] = queue.Queue(_AHEAD)
    done = threading.Event()

    def put(item: Batch | BaseException) -> None:
        while not done.is_set():  # afterwards nobody takes anything any more
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def draw() -> None:
        try:
            for n in steps:
                put(task.batch(n, rows).pinned())
                if done.is_set():
                    return
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=draw, name="batches", daemon=True)
    thread.start()
    try:
        for _ in steps:
            batch = ready.get()
            if isinstance(batch, BaseException):
                raise batch
            yield batch
    finally:
        done.set()
        thread.join()
