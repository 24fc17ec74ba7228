"""Cluster engine: one Ray task per part. Ray ships this checkout's code; hosts need the dependencies installed."""

from __future__ import annotations

import logging
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from niels_gpt.jobs.engine import TRIES, Function, I, R, call, check_tries

# Tasks submitted beyond the number of cores, so that a core that becomes free has one waiting.
_WAITING = 2


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
        try:
            limit = self.workers or int(ray.cluster_resources().get("CPU", 1)) + _WAITING
            yield from _in_tasks(ray, function, iter(items), limit, tick)
        finally:
            ray.shutdown()


def _started(address: str | None, workers: int) -> Any:
    """Connect to the cluster, or start a local one, and return the ray module."""
    try:
        import ray
    except ImportError as error:
        raise ValueError("runtime.engine is ray, which is not installed: pip install 'niels_gpt[ray]'") from error
    import niels_gpt

    if address is not None:
        _check_reachable(address)
    options: dict[str, Any] = {"address": address or "local"}
    if address is None and workers:
        options["num_cpus"] = workers
    try:
        # py_modules makes every host run the code of this checkout.
        ray.init(
            **options,
            runtime_env={"py_modules": [niels_gpt]},
            log_to_driver=False,
            logging_level=logging.ERROR,
            include_dashboard=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"the Ray cluster at {address} does not take us ({error}): have the RAY_AUTH_MODE and the token of its "
            "hosts here, and the same version of Ray"
        ) from error
    return ray


def _check_reachable(address: str) -> None:
    """Raise within 10 s if nothing listens at the address; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no Ray cluster at {address} ({error}): start one and give the head's host:port, or set runtime.engine "
            "to local"
        ) from error


def _in_tasks(
    ray: Any, function: Function[I, R], items: Iterator[I], limit: int, tick: Callable[[int], object]
) -> Iterator[tuple[I, R]]:
    # Ray retries a task whose worker or host died; tasks that raised an exception are resubmitted here.
    task, options = ray.remote(call), {"num_cpus": 1, "max_retries": TRIES - 1}
    tries: Counter[str] = Counter()
    again: deque[I] = deque()
    pending: dict[Any, I] = {}
    try:
        while True:
            new = [again.popleft() for _ in range(min(len(again), limit - len(pending)))]
            for item in [*new, *islice(items, limit - len(pending) - len(new))]:
                tries[item.name] += 1
                pending[task.options(name=item.name, **options).remote(function, item)] = item
            if not pending:
                return
            for done in ray.wait(list(pending), num_returns=1)[0]:
                item = pending.pop(done)
                try:
                    result, size = ray.get(done)
                except ray.exceptions.RayTaskError as error:
                    check_tries(item, error.cause if isinstance(error.cause, Exception) else error, tries[item.name])
                    again.append(item)
                except ray.exceptions.RayError as error:  # Ray has used up its retries
                    check_tries(item, error, TRIES)
                else:
                    tick(size)
                    yield item, result
    finally:
        for started in pending:
            ray.cancel(started, force=True)
