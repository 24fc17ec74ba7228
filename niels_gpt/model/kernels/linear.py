"""Linear layers whose bias a kernel adds."""

from __future__ import annotations

from torch import nn


def has_separate_bias(linear: nn.Module) -> bool:
    """Whether weight and bias are all there is to it.

    Exactly nn.Linear: a kernel that takes its weight and adds its bias does not call it, and a subclass (quantized, or
    with low-rank adapters) may compute something else.
    """
    return type(linear) is nn.Linear and linear.bias is not None
