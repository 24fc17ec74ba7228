"""Against a test that would hang: whatever waits for ever is broken off and fails."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def watchdog(seconds: int = 30, *, of_cpu: bool = False) -> Iterator[None]:
    """`of_cpu`: count seconds in which this process computes, which do not depend on the machine's load."""
    timer, kind = (signal.ITIMER_PROF, signal.SIGPROF) if of_cpu else (signal.ITIMER_REAL, signal.SIGALRM)

    def bark(*_: object) -> None:
        raise AssertionError(f"still waiting after {seconds} s")

    before = signal.signal(kind, bark)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(kind, before)
