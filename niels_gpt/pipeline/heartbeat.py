"""Signs of life between the hosts of a run, by way of the key-value store that torchrun keeps on host 0.

A host that loses power or its network closes no connection: whoever waits for its ranks would wait for as long as the
longest validation may take. These signs come from the process that started the ranks, which has nothing else to do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType

from torch.distributed import TCPStore

_EVERY_S = 2.0
_SILENT_S = 30.0
_DONE, _FAILED = "done", "failed"


class Heartbeat:
    """As a context: tells the others that this host is alive, and listens to them."""

    def __init__(self, address: str, port: int, *, host: int, hosts: int) -> None:
        self._at_work: Callable[[], bool] = lambda: True
        self._address, self._port, self._host = address, port, host
        self._heard = {other: ("", 0.0) for other in range(hosts) if other != host}  # what was said last, and when
        self._round = 0.0  # when the store answered last; 0: it has not yet
        self._last_word = ""
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def as_long_as(self, at_work: Callable[[], bool]) -> Heartbeat:
        """Whether this host's ranks run; afterwards there is nothing to be said but how it ended."""
        self._at_work = at_work
        return self

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(failed=kind is not None)

    def leave(self, *, failed: bool) -> None:
        """Tell the others, if there is still somebody to tell."""
        if not self._leaving.is_set():
            self._last_word = _FAILED if failed else _DONE
            self._leaving.set()
            self._thread.join(timeout=2 * _EVERY_S)

    def missing(self) -> str:
        """A sentence about a host that has failed, or that was heard once and is silent; else nothing."""
        now = time.monotonic()
        for other, (word, at) in self._heard.items():
            if word == _FAILED:
                return f"host {other} has failed; what it said stands there"
            if word not in ("", _DONE) and self._round - at > _SILENT_S:
                return f"host {other} has not been heard of for {_SILENT_S:.0f} seconds"
        if self._round and now - self._round > _SILENT_S:
            return f"host 0 has not answered for {_SILENT_S:.0f} seconds"
        return ""

    def _beat(self) -> None:
        with suppress(RuntimeError, ValueError):  # of a store that is gone; `missing` sees that nothing comes any more
            store = TCPStore(
                self._address, self._port, is_master=False, wait_for_workers=False, timeout=timedelta(hours=1)
            )
            beats = 0
            while not self._leaving.is_set():
                if self._at_work():  # else the store may be gone, and torch would complain of it, with a stack
                    beats += 1
                    self._exchange(store, str(beats))
                self._leaving.wait(_EVERY_S)
            store.set(_key(self._host), self._last_word)

    def _exchange(self, store: TCPStore, word: str) -> None:
        store.set(_key(self._host), word)
        for other, (last, _) in self._heard.items():
            if store.check([_key(other)]) and (word := store.get(_key(other)).decode()) != last:
                self._heard[other] = (word, time.monotonic())
        self._round = time.monotonic()


def _key(host: int) -> str:
    return f"niels_gpt/host/{host}"
