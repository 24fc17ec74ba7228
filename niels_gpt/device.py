"""Where tensors live."""

from __future__ import annotations

import torch


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
