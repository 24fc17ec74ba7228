"""Engines that process the parts of a source in parallel, and done-records of finished parts.

An engine runs worker processes on this machine, or tasks of a Ray cluster, which ships this checkout's code.

The output of a part is a function of that part alone and is published atomically. So the bytes depend neither on the
engine, nor on the number of workers, the order of parts, or retries.
"""

import json
import logging
import os
import pickle
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

from niels_gpt.files.atomic import json_text
from niels_gpt.files.messages import sentence
from niels_gpt.files.store import Store

TRIES = 3  # attempts at a part whose worker died or met a transient error


class Item(Protocol):
    """Task description of one part: any picklable object with a unique name."""

    @property
    def name(self) -> str: ...


I = TypeVar("I", bound=Item)  # noqa: E741
R = TypeVar("R")


@dataclass(frozen=True)
class Worker:
    """Resources of a task: threads it may use, and a progress callback (bytes done since the last call)."""

    threads: int = 1
    tick: Callable[[int], object] = bool


Function = Callable[[I, Worker], R]


def call(function: Function[I, R], item: I) -> tuple[R, int]:
    """Run the function in a worker process; return its result and the bytes it processed.

    An error that does not survive pickling, which would break a pool of processes, is replaced by its text.
    """
    seen: list[int] = []
    try:
        return function(item, Worker(tick=seen.append)), sum(seen)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {sentence(error)}") from None
        raise


def check_tries(item: Item, fault: BaseException | str, tries: int) -> None:
    """Raise if a failed part must not be retried: after a ValueError (bad input), or after `TRIES` attempts."""
    if isinstance(fault, ValueError):
        raise fault
    if tries == TRIES:
        raise RuntimeError(f"{item.name} failed {TRIES} times; the last time: {fault}")


_DIED = "its process was killed (out of memory? then lower runtime.workers)"
_WAITING = 2  # tasks submitted to a cluster beyond the number of cores, so that a core that becomes free has one
Submit = Callable[[Function[Any, Any], Any], "Future[tuple[Any, int]]"]


@dataclass(frozen=True)
class LocalEngine:
    """Engine that runs parts on this machine, in up to `workers` processes; a single part runs in this process."""

    workers: int

    def map(
        self, function: Function[I, R], items: Iterable[I], *, tick: Callable[[int], object]
    ) -> Iterator[tuple[I, R]]:
        """Yield (item, function(item, worker)) in order of completion.

        Items are requested only when a worker is free, so the iterable may end early. Closing the generator stops
        running tasks. `tick` is called with the bytes done.
        """
        remaining = iter(items)
        first = list(islice(remaining, 2))
        if self.workers == 1 or len(first) < 2:
            here = Worker(threads=self.workers, tick=tick)  # a single part uses threads instead
            for item in chain(first, remaining):
                yield item, function(item, here)
            return
        yield from _map(lambda: _processes(self.workers), function, chain(first, remaining), self.workers, tick)


@dataclass(frozen=True)
class RayEngine:
    """Engine that runs parts as tasks of a Ray cluster.

    `address` is the host:port of the cluster's head; None starts a temporary cluster on this machine. `workers` is the
    maximum number of parts at a time; 0 means as many as the cluster has cores.
    """

    address: str | None
    workers: int = 0

    def map(
        self, function: Function[I, R], items: Iterable[I], *, tick: Callable[[int], object]
    ) -> Iterator[tuple[I, R]]:
        ray = _started(self.address, self.workers)
        # Tasks are retried by this process, so Ray must not.
        task, started = ray.remote(num_cpus=1, max_retries=0)(call), list[Any]()

        def submit(function: Function[I, R], item: I) -> Future[tuple[R, int]]:
            started.append(task.options(name=item.name).remote(function, item))
            future: Future[tuple[R, int]] = started[-1].future()
            return future

        try:
            limit = self.workers or int(ray.cluster_resources().get("CPU", 1)) + _WAITING
            yield from _map(lambda: nullcontext(submit), function, iter(items), limit, tick)
        finally:
            for reference in started:
                ray.cancel(reference, force=True)
            ray.shutdown()


Engine = LocalEngine | RayEngine


def _map(
    pool: Callable[[], AbstractContextManager[Submit]],
    function: Function[I, R],
    items: Iterator[I],
    workers: int,
    tick: Callable[[int], object],
) -> Iterator[tuple[I, R]]:
    """Yield (item, result) from a pool, opening a new one if a process of it dies."""
    tries: Counter[str] = Counter()
    queued: deque[I] = deque()  # parts to retry, and the next one to submit
    while True:
        pending: dict[Future[tuple[R, int]], I] = {}
        with pool() as submit, suppress(BrokenProcessPool):
            while True:
                limit = 1 if queued else workers  # retries run alone, see below
                while len(pending) < limit:
                    if not queued:
                        queued.extend(islice(items, 1))
                    if not queued:
                        break
                    future = submit(function, queued[0])
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
                        cause = getattr(error, "cause", None)  # of an error that Ray wraps
                        check_tries(item, cause if isinstance(cause, Exception) else error, tries[item.name])
                        queued.append(item)
        # A worker died, and a broken pool does not say on which part. Retry all pending parts in a new pool, one at a
        # time: the next death is then attributable, and each part has more memory.
        for item in pending.values():
            check_tries(item, _DIED, tries[item.name])
        queued.extend(pending.values())


@contextmanager
def _processes(workers: int) -> Iterator[Submit]:
    """Yield the way to submit to processes that exit, even within a part, when the block ends or this process dies."""
    context = get_context("spawn")  # a forked process would hang on threads of Arrow or torch
    lifeline, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(lifeline,))

    def submit(function: Function[I, R], item: I) -> Future[tuple[R, int]]:
        # Workers started here inherit that SIGINT is blocked, and leave Ctrl-C to this process.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return pool.submit(call, function, item)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        yield submit
    finally:
        held.close()
        pool.shutdown(cancel_futures=True)
        lifeline.close()


def _start_worker(lifeline: Connection) -> None:
    """Start a thread that exits this worker as soon as the other end of the `lifeline` pipe is closed."""

    def watch() -> None:
        with suppress(EOFError, OSError):
            lifeline.recv()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _started(address: str | None, workers: int) -> Any:
    """Connect to the cluster, or start a local one, and return the ray module."""
    try:
        import ray
    except ImportError as error:
        raise ValueError("runtime.engine is ray, which is not installed: pip install 'niels_gpt[ray]'") from error
    import niels_gpt

    try:
        if address is not None:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()  # Ray itself would retry for minutes
        # py_modules makes every host run the code of this checkout.
        ray.init(
            address=address or "local",
            num_cpus=workers or None if address is None else None,  # a cluster knows its own
            runtime_env={"py_modules": [niels_gpt]},
            log_to_driver=False,
            logging_level=logging.ERROR,
            include_dashboard=False,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"no Ray cluster at {address} takes us ({error}): start one and give the head's host:port, have the "
            "RAY_AUTH_MODE and token of its hosts and the same version of Ray here, or set runtime.engine to local"
        ) from error
    return ray


# Done-records: one JSON file per part, written after all of the part's files. They alone say which parts are done: a
# listing of the store could contain files of an unfinished part.

_TELL_EVERY_S = 60
Record = dict[str, Any]  # "files" lists the part's output: file, bytes and sha256 of each


def _recorded(function: Function[I, Record], store: Store, item: I, worker: Worker) -> Record:
    """Run a part function, and write the part's done-record once all its files are there."""
    record: Record = json.loads(json_text(function(item, worker)))  # as it is read again
    write_record(store, item.name, record)
    return record


def make_parts(
    engine: Engine,
    function: Function[I, Record],
    items: Sequence[I],
    *,
    store: Store,
    enough: Callable[[Sequence[Record]], bool] = lambda records: False,
    say: Callable[[str], object] = bool,
    tick: Callable[[int], object] = bool,
) -> list[Record]:
    """Return the records of all items in order, running `function` only for items without one.

    No further item is started once `enough(records)` is true of those before the first unfinished item. How many are
    returned then depends on timing. `say` gets progress messages, `tick` the bytes done.
    """
    store.sweep()
    known = {item.name: record for item in items if (record := read_record(store, item.name)) is not None}

    first: list[Record] = []  # records of the longest prefix of finished items

    def are_enough() -> bool:
        while len(first) < len(items) and items[len(first)].name in known:
            first.append(known[items[len(first)].name])
        return enough(first)

    def missing() -> Iterator[I]:
        for item in items:
            if item.name not in known:
                if are_enough():
                    return
                yield item

    if len(items) > 1 or known:
        say(f"{len(items) - len(known):,} of {len(items):,} parts to do")
    told = time.monotonic()
    for item, record in engine.map(partial(_recorded, function, store), missing(), tick=tick):
        known[item.name] = record
        if time.monotonic() - told > _TELL_EVERY_S:
            told = time.monotonic()
            say(f"{len(known):,} of {len(items):,} parts done")
    store.sweep()
    are_enough()  # with the parts that were made last
    return first


def write_record(store: Store, name: str, record: Record) -> None:
    """Write the done-record of the part `name`."""
    with store.writing(f"done/{name}.json") as path:
        path.write_text(json_text(record), encoding="utf-8")


def read_record(store: Store, name: str) -> Record | None:
    """Return the record of a part; None if it is not done or a file it lists is missing or of another size."""
    try:
        record = json.loads(store.read(f"done/{name}.json") or "")
        whole = all(store.size(file["file"]) == file["bytes"] for file in record["files"])
    except (ValueError, TypeError, LookupError):
        return None
    return record if whole else None
