"""Local engine: a pool of worker processes, one part at a time each; a single part runs in this process."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from niels_gpt.files.messages import sentence
from niels_gpt.jobs.engine import Function, I, R, Worker, call, check_tries

_DIED = "its process was killed (out of memory? then lower runtime.workers)"


@dataclass(frozen=True)
class LocalEngine:
    """Engine that runs parts on this machine, in up to `workers` processes."""

    workers: int

    def map(
        self, function: Function[I, R], items: Iterable[I], *, tick: Callable[[int], object]
    ) -> Iterator[tuple[I, R]]:
        remaining = iter(items)
        first = list(islice(remaining, 2))
        if self.workers == 1 or len(first) < 2:
            here = Worker(threads=self.workers, tick=tick)  # a single part uses threads instead
            for item in chain(first, remaining):
                yield item, function(item, here)
            return
        yield from _in_processes(function, chain(first, remaining), self.workers, tick)


def _in_processes(
    function: Function[I, R], items: Iterator[I], workers: int, tick: Callable[[int], object]
) -> Iterator[tuple[I, R]]:
    """Yield (item, result) from a pool of processes, restarting the pool if a worker dies."""
    tries: Counter[str] = Counter()
    queued: deque[I] = deque()  # parts to retry, and the next one to submit
    while True:
        pending: dict[Future[tuple[R, int]], I] = {}
        with _pool(workers) as pool, suppress(BrokenProcessPool):
            while True:
                limit = 1 if queued else workers  # retries run alone, see below
                while len(pending) < limit and (queued or _take(items, queued)):
                    with _ctrl_c_blocked():
                        future = pool.submit(_call, pickle.dumps((function, queued[0])))
                    pending[future] = queued.popleft()
                    tries[pending[future].name] += 1
                if not pending:
                    return
                for done in wait(pending, return_when=FIRST_COMPLETED).done:
                    error = done.exception()
                    if isinstance(error, BrokenProcessPool):
                        raise error
                    item = pending.pop(done)
                    if error is None:
                        result, size = done.result()
                        tick(size)
                        yield item, result
                    else:
                        check_tries(item, error, tries[item.name])
                        queued.append(item)
        # A worker died, and a broken pool does not say on which part. Retry all pending parts in a new pool, one at a
        # time: the next death is then attributable, and each part has more memory.
        for item in pending.values():
            check_tries(item, _DIED, tries[item.name])
        queued.extend(pending.values())


def _take(items: Iterator[I], queued: deque[I]) -> bool:
    """Queue the next item; return whether there was one."""
    queued.extend(islice(items, 1))
    return bool(queued)


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a process pool whose workers exit, even within a part, when the block ends or this process dies."""
    context = get_context("spawn")  # a forked process would hang on threads of Arrow or torch
    lifeline, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(lifeline,))
    try:
        yield pool
    finally:
        held.close()
        pool.shutdown(cancel_futures=True)
        lifeline.close()


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Block SIGINT during the block; workers started in it inherit that and leave Ctrl-C to this process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(lifeline: Connection) -> None:
    """Start a thread that exits this worker as soon as the other end of the `lifeline` pipe is closed."""

    def watch() -> None:
        with suppress(EOFError, OSError):
            lifeline.recv()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _call(task: bytes) -> tuple[Any, int]:
    """Unpickle and run a task; done here because a pool breaks if a worker cannot import the function."""
    try:
        return call(*pickle.loads(task))
    except Exception as error:
        raise _portable(error) from None


def _portable(error: Exception) -> Exception:
    """Return the error if it survives pickling, else a RuntimeError with its message."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {sentence(error)}")
    return error
