"""Distributed ranks started by fork, for tests: as with torchrun, but torch is imported only once.

Fork from a process that has done nothing else yet: threads do not survive a fork.
"""

import os
import socket
import traceback
from collections.abc import Callable


def fork_ranks(size: int, work: Callable[[int], None], *, hosts: int = 1) -> list[int]:
    """Run `work(rank)` in a process per rank, with torchrun's variables for `hosts` hosts; return the exit codes."""
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
