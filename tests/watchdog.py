"""Time limit for tests that might hang: one that waits forever is interrupted and fails."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def watchdog(seconds: int = 30, *, of_cpu: bool = False) -> Iterator[None]:
    """Fail if the block takes longer; `of_cpu` counts CPU time, which does not depend on the machine's load."""
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
