"""Where tensors live."""

from __future__ import annotations

import os

import torch

from niels_gpt.allocator import KEEP_FREED, use_allocation


def get_device() -> str:
    """The interfaces seed's rule: "mps" on Apple Silicon, else "cpu"."""
    return "mps" if torch.backends.mps.is_available() else "cpu"


def resolve_device(name: str) -> str:
    """`auto` takes cuda, then mps, then cpu; any other name is taken at its word, if it is there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else get_device()
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = name.split(":", maxsplit=1)[0]
    if not available.get(kind, False):
        have = ", ".join(k for k, v in available.items() if v)
        raise ValueError(f"device {name!r} is not available here (there is: {have}); `auto` chooses one")
    return name


def prepare_device(name: str, *, threads: int) -> str:
    """The device to compute on, with so many CPU threads (0: all). Of several processes each has a GPU of its own."""
    if threads:
        torch.set_num_threads(threads)
    use_allocation(KEEP_FREED)
    device, local = resolve_device(name), os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if device == "cuda" and local is not None else device
