"""Where tensors live, and what the C library does with the memory of those that are freed."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
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


def get_device() -> str:
    """The interfaces seed's rule: "mps" on Apple Silicon, else "cpu"."""
    import torch  # here and below: who only checks a name does not wait for it

    return "mps" if torch.backends.mps.is_available() else "cpu"


def check_device_name(name: str) -> str:
    """Refuse a name that is no device's on any machine."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(?::\d+)?", name):
        raise ValueError(f"{name!r} is no device: use auto, cpu, mps, cuda, or cuda:1 for the second of several")
    return name


def resolve_device(name: str) -> str:
    """`auto` takes cuda, then mps, then cpu; any other name is taken at its word, if it is there."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else get_device()
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    counts = {"cpu": 1, "cuda": cuda, "mps": int(torch.backends.mps.is_available())}
    kind, _, number = name.partition(":")
    if int(number or 0) >= counts.get(kind, 0):
        have = ", ".join(kind for kind, count in counts.items() if count)
        raise ValueError(f"device {name!r} is not available here (there is: {have}); `auto` chooses one")
    return name


def prepare_device(name: str, *, threads: int) -> str:
    """The device to compute on, with so many CPU threads (0: all). Of several processes each has a GPU of its own."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    use_allocation(KEEP_FREED)
    device, local = resolve_device(name), os.environ.get("LOCAL_RANK")
    if device == "cuda" and local is not None:
        device = f"cuda:{local}"
    if device.startswith("cuda:"):
        torch.cuda.set_device(device)  # where CUDA graphs, Triton's kernels and what ranks tell each other go
    return device


def machine_name(device: str) -> str:
    """What computes there, by the name that its maker gave it."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_cpu_name()}, {threads} thread{'s' if threads > 1 else ''}"


def _cpu_name() -> str:
    try:
        said = subprocess.run(
            ["lscpu"], env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):  # not a Linux, or a bare one
        said = ""
    named = re.search(r"^Model name:\s*(\S.*)$", said, re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()
