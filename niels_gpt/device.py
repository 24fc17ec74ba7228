"""Device selection, and glibc malloc settings that keep freed tensor memory in the process."""

import ctypes
import os
import platform
import re
import subprocess
from contextlib import suppress
from typing import Any

from niels_gpt.files.messages import plural

# mallopt parameter numbers from glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -3, -4, -8


def keep_freed_memory(keep: bool = True) -> None:
    """Have glibc's malloc keep freed memory, or not; do nothing if the C library has no mallopt (macOS).

    Every step frees what the next one allocates. Memory returned to the system comes back by one page fault per page,
    which took a tenth of a CPU step.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    libc.mallopt(_M_MMAP_MAX, 0 if keep else 65536)
    libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1 if keep else 64 << 20)
    libc.mallopt(_M_TOP_PAD, 64 << 20 if keep else 128 << 10)
    if keep:
        libc.mallopt(_M_ARENA_MAX, 1)  # per-thread arenas cannot keep blocks above 64 MiB
    else:
        libc.malloc_trim(0)


def get_device() -> str:
    """Return "mps" on Apple Silicon, else "cpu", as the v0 interface specifies; see `resolve_device` for CUDA."""
    import torch  # imported inside functions, so that check_device_name does not wait for it

    return "mps" if torch.backends.mps.is_available() else "cpu"


def check_device_name(name: str) -> str:
    """Return the name, or raise a ValueError if it is not a device name on any machine."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(?::\d+)?", name):
        raise ValueError(f"{name!r} is no device: use auto, cpu, mps, cuda, or cuda:1 for the second of several")
    return name


def resolve_device(name: str) -> str:
    """Return the device for a name: `auto` prefers cuda, then mps, then cpu; others must be available here."""
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
    """Set up this process for computing and return its device; each local rank gets its own GPU.

    `threads` is the number of CPU threads; 0 keeps torch's default.
    """
    import torch

    if threads:
        torch.set_num_threads(threads)
    # MKL chooses its kernels at the first sine. When two threads came to it at once, 1 process in 60 had a RoPE table
    # with other last bits. This first sine is one thread's.
    torch.zeros(1).sin()
    keep_freed_memory()
    device, local = resolve_device(name), os.environ.get("LOCAL_RANK")
    if device == "cuda" and local is not None:
        device = f"cuda:{local}"
    if device.startswith("cuda:"):
        torch.cuda.set_device(device)  # CUDA graphs, Triton kernels and NCCL use the current device
    return device


def machine_name(device: str) -> str:
    """Return the model name of the GPU, or of the CPU with its number of threads."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    said = ""
    with suppress(OSError):  # no lscpu: not Linux, or a minimal image
        how: dict[str, Any] = {"env": {**os.environ, "LC_ALL": "C"}, "capture_output": True, "text": True}
        said = subprocess.run(["lscpu"], check=False, **how).stdout
    named = re.search(r"^Model name:\s*(\S.*)$", said, re.MULTILINE)
    name = named[1].strip() if named else platform.processor() or platform.machine()
    return f"{name}, {plural(torch.get_num_threads(), 'thread')}"
