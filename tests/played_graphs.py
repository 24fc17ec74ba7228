"""CUDA graphs without a GPU: recording and replay, emulated on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Graph:
    """CUDA graph emulated on a CPU.

    Operations are recorded with the very tensors they read and wrote; a replay repeats them on those tensors.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.memory: object = None

    def pool(self) -> object:
        return self

    def replay(self) -> None:
        for function, args, kwargs, before in self.calls:
            again = function(*args, **kwargs)
            for old, new in zip(tree_leaves(before), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old is not new:
                    old.copy_(new)


class Noting(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._graph.calls.append((func, args, kwargs or {}, out))
        return out


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Patch torch.cuda to record graphs on a CPU; return the list to which each recorded graph is added."""
    recorded: list[Graph] = []

    @contextmanager
    def record(graph: Graph, pool: object = None) -> Iterator[None]:
        recorded.append(graph)
        graph.memory = pool
        with Noting(graph):
            yield

    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    return recorded
