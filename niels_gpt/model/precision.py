"""Mixed precision (float32 or bf16), and recording CUDA graphs."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.nn import functional as F

Precision = Literal["float32", "bf16"]


def computing_in(precision: Precision, device: str) -> AbstractContextManager[object]:
    """bf16: matrix products and attention in bfloat16, what is delicate (norms, softmax, loss) in float32."""
    return torch.autocast(device.split(":", maxsplit=1)[0], torch.bfloat16, enabled=precision == "bf16")


_Model = TypeVar("_Model", bound=nn.Module)


def bf16_copy(model: _Model) -> _Model:
    """A model to compute in bf16 with, and not to train: its matrices are as autocast makes them at every call, and
    what autocast leaves alone (embeddings, norms) is in float32 still. So it computes the same, to the bit."""
    copied = copy.deepcopy(model)
    for layer in copied.modules():
        if isinstance(layer, nn.Linear):
            for name, parameter in list(layer.named_parameters(recurse=False)):
                layer.register_parameter(name, nn.Parameter(parameter.bfloat16(), requires_grad=False))
    return copied


def residual_dtype(precision: Precision) -> torch.dtype:
    """Of the residual stream, which runs from block to block."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def settle_bf16(device: str, *, say: Callable[[str], None]) -> None:
    """Before the first number of a bf16 run: where the CPU has no units for it, say so, once.

    torch finds that out product by product, with a warning each, and at the first one that fails it gives up the
    library it tried for the whole process: what is computed before is rounded differently from what comes after.
    """
    if device != "cpu" or not torch.backends.mkldnn.enabled or _multiplies_bf16():
        return
    # Not `set_flags`, which has a warning of its own to give.
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # torch: a property of a module
    say(
        f"this CPU has no units for bf16: a matrix product takes about {_bf16_to_float32():.0f} times as long as in "
        "float32 (set precision: float32)"
    )


def _bf16_to_float32() -> float:
    """The time of a matrix product in bf16, in that of one in float32; of a few tries the best, some milliseconds."""

    def seconds(dtype: torch.dtype) -> float:
        x, tries = torch.ones(128, 128, dtype=dtype), []
        for _ in range(4):
            start = time.perf_counter()
            x @ x
            tries.append(time.perf_counter() - start)
        return min(tries)

    return seconds(torch.bfloat16) / seconds(torch.float32)


def _multiplies_bf16() -> bool:
    """Whether the chip is one that torch multiplies bf16 on, and does so without a warning."""
    if not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return False
    x, weight = torch.ones(32, 64, dtype=torch.bfloat16), torch.ones(64, 64, dtype=torch.bfloat16, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        F.linear(x, weight).sum().backward()
        torch.bmm(x[None], weight.detach()[None])
    return not caught


_Result = TypeVar("_Result")


def warm_up(compute: Callable[[], object], *, times: int = 1) -> None:
    """Before it is recorded: kernels are compiled, and libraries take their memory, on a stream of its own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            compute()
    torch.cuda.current_stream().wait_stream(side)


def record(compute: Callable[[], _Result], *, pool: Any = None) -> tuple[torch.cuda.CUDAGraph, _Result]:
    """The graph, and the result, which every replay writes anew. `pool`: the memory of another graph to share."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = compute()
    return graph, result
