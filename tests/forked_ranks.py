"""Ranks by fork, for tests: as torchrun starts them, but with torch imported once. For a process that has done nothing
else yet: threads do not survive a fork."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable


def fork_ranks(size: int, work: Callable[[int], None], *, hosts: int = 1) -> list[int]:
    """`work(rank)` in a process each, described to itself as one of the ranks of so many hosts; their exit codes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    here, pids = size // hosts, []
    for rank in range(size):
        pid = os.fork()
        if pid:
            pids.append(pid)
            continue
        place = {"RANK": rank, "WORLD_SIZE": size, "GROUP_RANK": rank // here, "LOCAL_RANK": rank % here}
        os.environ |= {name: str(value) for name, value in (place | {"LOCAL_WORLD_SIZE": here}).items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        try:
            work(rank)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
