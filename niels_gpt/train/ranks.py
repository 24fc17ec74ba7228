"""Data-parallel ranks: several processes on one run, each with its own rows of a batch, and the sums they share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed


@dataclass(frozen=True)
class Ranks:
    """This process among `size` that train together. Every one draws the same global batch and takes its own rows."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """The one that validates, logs and writes."""
        return self.rank == 0

    def rows(self, B: int) -> slice:
        """This rank's part of B rows; the parts differ by one row at most."""
        if self.size > B:
            raise ValueError(f"{self.size} processes for B={B} rows a step: lower runtime.nproc, or raise B")
        return slice(B * self.rank // self.size, B * (self.rank + 1) // self.size)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """In place, over all ranks."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def any(self, flag: bool, *, device: str) -> bool:
        """Whether it is so on any rank: they must stop at the same step, or wait for each other for ever."""
        return flag if self.size == 1 else bool(self.sum(torch.tensor(float(flag), device=device)) > 0)

    def from_first(self, value: Any) -> Any:
        """What rank 0 has."""
        if self.size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]


@contextmanager
def joined_ranks(device: str) -> Iterator[Ranks]:
    """The group that torchrun describes in the environment; a single rank where there is none."""
    if "RANK" not in os.environ:
        yield Ranks()
        return
    distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield Ranks(rank=distributed.get_rank(), size=distributed.get_world_size())
    finally:
        distributed.destroy_process_group()
