"""Mixed precision (float32 or bf16) and recording of CUDA graphs, for training and inference."""

import copy
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.nn import functional as F

Precision = Literal["float32", "bf16"]


def computing_in(precision: Precision, device: str) -> AbstractContextManager[object]:
    """Return the autocast context of a precision.

    bf16: matrix products and attention in bfloat16; norms, softmax and loss in float32.
    """
    return torch.autocast(device.split(":", maxsplit=1)[0], torch.bfloat16, enabled=precision == "bf16")


_Model = TypeVar("_Model", bound=nn.Module)


def bf16_copy(model: _Model) -> _Model:
    """Return a copy for bf16 inference, with its linear layers cast once instead of by autocast at every call.

    Embeddings and norms, which autocast does not cast, stay in float32: results are the same to the bit.
    """
    copied = copy.deepcopy(model)
    for layer in copied.modules():
        if isinstance(layer, nn.Linear):
            for name, parameter in list(layer.named_parameters(recurse=False)):
                layer.register_parameter(name, nn.Parameter(parameter.bfloat16(), requires_grad=False))
    return copied


def settle_bf16(device: str, *, say: Callable[[str], None]) -> None:
    """Disable mkldnn and `say` that bf16 is slow if this CPU has no bf16 units; call it before computing in bf16.

    torch would warn at every product and, at the first that fails, give up mkldnn for the whole process: numbers
    computed before and after that would be rounded differently.
    """
    if device != "cpu" or not torch.backends.mkldnn.enabled or _multiplies_bf16():
        return
    # Not `set_flags`, which warns by itself.
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # torch: a property of a module
    say("this CPU has no units for bf16, so it is many times slower than float32: set precision: float32")


def _multiplies_bf16() -> bool:
    """Check that torch multiplies bf16 on this CPU without a warning."""
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
    """Run `compute` on a side stream before recording it, to compile kernels and let libraries allocate memory."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            compute()
    torch.cuda.current_stream().wait_stream(side)


def record(compute: Callable[[], _Result], *, pool: Any = None) -> tuple[torch.cuda.CUDAGraph, _Result]:
    """Record `compute` as a CUDA graph; return the graph and the result, which every replay overwrites.

    `pool`: memory pool of another graph to share.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = compute()
    return graph, result
