"""A process that works on parts for another: tasks come in by its standard input, results go out by its output.

When the other process ends, even by kill -9, the input ends, and so does this one, in the middle of a task.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from niels_gpt.engine.engine import Worker
from niels_gpt.files.sentences import sentence

_TICK_EVERY_S = 0.2


def _read_tasks(inbox: Connection, tasks: queue.Queue[Any]) -> None:
    while True:
        try:
            tasks.put(inbox.recv())
        except (EOFError, OSError):
            os._exit(0)
        except Exception as error:  # of unpickling: a function that this process cannot import
            tasks.put(error)


def work(inbox: Connection, outbox: Connection) -> None:
    """Answer every (function, item) with ("tick", bytes)..., and then ("done", result) or ("failed", error)."""
    tasks: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_read_tasks, args=(inbox, tasks), daemon=True).start()

    while True:
        task = tasks.get()
        if isinstance(task, Exception):
            outbox.send(("failed", _portable(task)))
            continue
        function, item = task
        unsent, last = 0, time.monotonic()

        def tick(size: int) -> None:
            nonlocal unsent, last
            unsent += size
            if time.monotonic() - last > _TICK_EVERY_S:
                outbox.send(("tick", unsent))
                unsent, last = 0, time.monotonic()

        try:
            result = function(item, Worker(tick=tick))
            outbox.send(("tick", unsent))
            outbox.send(("done", result))
        except Exception as error:
            outbox.send(("failed", _portable(error)))


def _portable(error: Exception) -> Exception:
    """An error as it can be sent; one that cannot be pickled as a sentence."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {sentence(error)}")
    return error


if __name__ == "__main__":
    inbox, outbox = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what is printed is for people
    sys.stdout = sys.stderr
    work(inbox, outbox)
