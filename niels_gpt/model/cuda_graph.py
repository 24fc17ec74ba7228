"""CUDA graphs: work of a GPU that is recorded once and then launched as a whole, in the same memory each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

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
