"""The engine of one machine: processes of its own, a part at a time each. One part alone is done in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from typing import Any

from niels_gpt.engine.engine import Function, I, R, Worker, check_tries


@dataclass(frozen=True)
class LocalEngine:
    workers: int

    def map(
        self, function: Function[I, R], items: Iterable[I], *, tick: Callable[[int], object]
    ) -> Iterator[tuple[I, R]]:
        remaining = iter(items)
        first = list(islice(remaining, 2))
        if self.workers == 1 or len(first) < 2:
            here = Worker(threads=self.workers, tick=tick)
            for item in chain(first, remaining):
                yield item, function(item, here)
            return
        yield from _in_processes(function, chain(first, remaining), self.workers, tick)


class _Process:
    """A worker process, and the item it is at."""

    def __init__(self) -> None:
        path = os.pathsep.join(part or os.getcwd() for part in sys.path)
        (task_end, tasks), (answers, answer_end) = os.pipe(), os.pipe()
        # In a session of its own: a Ctrl-C is for this process, which ends the others.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "niels_gpt.engine.worker"],
            stdin=task_end,
            stdout=answer_end,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        os.close(task_end)
        os.close(answer_end)
        self._tasks, self.answers = Connection(tasks, readable=False), Connection(answers, writable=False)
        self.item: Any = None

    def give(self, function: Callable[..., Any], item: Any) -> None:
        self.item = item
        with suppress(BrokenPipeError):  # it died; its answers have ended, too, which is where that is seen
            self._tasks.send((function, item))

    def answer(self) -> tuple[str, Any]:
        """("tick", bytes), ("done", result), ("failed", error), or ("died", how)."""
        try:
            kind, value = self.answers.recv()
            return kind, value
        except (EOFError, OSError):
            code = self._process.wait()
            return "died", f"its process was killed by signal {-code}" if code < 0 else f"its process left with {code}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._tasks.close()
        self.answers.close()


def _in_processes(
    function: Function[I, R], items: Iterator[I], workers: int, tick: Callable[[int], object]
) -> Iterator[tuple[I, R]]:
    tries: Counter[str] = Counter()
    again: deque[I] = deque()
    busy: dict[Any, _Process] = {}  # by the end that its answers come from
    idle: list[_Process] = []
    try:
        while True:
            while len(busy) < workers and (item := again.popleft() if again else next(items, None)) is not None:
                process = idle.pop() if idle else _Process()
                busy[process.answers] = process
                tries[item.name] += 1
                process.give(function, item)
            if not busy:
                return
            for ready in wait(list(busy)):
                kind, value = busy[ready].answer()
                if kind == "tick":
                    tick(value)
                    continue
                process = busy.pop(ready)
                item = process.item
                if kind == "died":
                    process.end()
                else:
                    idle.append(process)
                if kind == "done":
                    yield item, value
                else:
                    check_tries(item, value, tries[item.name])
                    again.append(item)
    finally:
        for process in (*busy.values(), *idle):
            process.end()
