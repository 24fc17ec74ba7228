"""In which numbers a model computes. Weights, gradients and optimizer state are float32 in all of them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal

import torch

Precision = Literal["float32", "bf16"]


def computing_in(precision: Precision, device: str) -> AbstractContextManager[object]:
    """bf16: matrix products and attention in bfloat16, what is delicate (norms, softmax, loss) in float32."""
    return torch.autocast(device.split(":", maxsplit=1)[0], torch.bfloat16, enabled=precision == "bf16")


def stream_dtype(precision: Precision) -> torch.dtype:
    """Of what runs from block to block."""
    return torch.bfloat16 if precision == "bf16" else torch.float32
