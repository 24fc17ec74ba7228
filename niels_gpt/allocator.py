"""What the C library does with the memory of freed tensors."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

# Names of <malloc.h>.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -3, -4, -8


@dataclass(frozen=True)
class Allocation:
    """glibc's settings: how many blocks may come straight from the system, and how much free memory is kept."""

    mmap_max: int
    trim_threshold: int


# Where glibc's own adjustment ends up when large tensors come and go.
SYSTEM = Allocation(mmap_max=65536, trim_threshold=64 << 20)
# Every step frees what it will ask for again; pages handed back return one fault at a time, a tenth of a CPU step.
KEEP_FREED = Allocation(mmap_max=0, trim_threshold=2**31 - 1)


def use_allocation(allocation: Allocation) -> None:
    """From now on, in this process; without effect where the C library is another."""
    libc = ctypes.CDLL(None)
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_MMAP_MAX, allocation.mmap_max)
        mallopt(_M_TRIM_THRESHOLD, allocation.trim_threshold)
        mallopt(_M_TOP_PAD, 64 << 20 if allocation == KEEP_FREED else 128 << 10)
        if allocation == KEEP_FREED:
            mallopt(_M_ARENA_MAX, 1)  # one of a thread's own keeps no block above 64 MiB
        if allocation == SYSTEM:
            libc.malloc_trim(0)  # what was kept goes back, as if it never had been
