"""Ranks of a distributed job: how work is divided among processes, and their collective operations."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch  # imported lazily: single-process stages do not need it

T = TypeVar("T")
# Timeout of a collective: longer than a rank needs to write a checkpoint, compile, or hash its copy of the token files;
# short enough to notice a host that lost power or network, which closes no connection.
TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class Ranks:
    """Position of this process among the `size` that train together; each takes its own rows of every batch."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # within its host
    local_size: int = 1  # processes on this host

    @property
    def first(self) -> bool:
        return self.rank == 0  # it logs and writes files

    def rows(self, B: int) -> slice:
        """Return this rank's slice of the B rows of a step; raise if a rank would have none."""
        if self.size > B:
            raise ValueError(f"{self.size} processes for B={B} rows per step: lower runtime.nproc, or raise B")
        return self.share(B)

    def files(self, files: Sequence[T]) -> Sequence[T]:
        """Return the files this rank has to check; the ranks of each host cover all, since each host has a copy."""
        return files[self.local_rank :: self.local_size]

    def share(self, n: int) -> slice:
        """Return this rank's slice of n items; slice lengths differ by at most one."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def sum(self, values: "torch.Tensor") -> "torch.Tensor":
        """Sum a tensor over all ranks, in place, and return it."""
        if self.size > 1:
            from torch import distributed

            distributed.all_reduce(values)
        return values

    def any(self, flag: bool, *, device: str) -> bool:
        """Return whether the flag is set on any rank; ranks must stop at the same step or they would deadlock."""
        if self.size == 1:
            return flag
        import torch

        return bool(self.sum(torch.tensor(float(flag), device=device)) > 0)

    def exchange(self, value: T) -> list[T]:
        """Return the values of all ranks in rank order (all-gather of picklable objects)."""
        if self.size == 1:
            return [value]
        from torch import distributed

        box: list[Any] = [None] * self.size
        distributed.all_gather_object(box, value)
        return box

    def summed(self, parts: Mapping[str, float]) -> dict[str, float]:
        """Return the sum of each value over all ranks, added in rank order so that all get identical bits."""
        everyone = self.exchange(dict(parts))
        return {name: sum(one[name] for one in everyone) for name in parts}

    def from_first(self, value: Any) -> Any:
        """Return rank 0's value on every rank (broadcast of a picklable object)."""
        if self.size == 1:
            return value
        from torch import distributed

        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]


ALONE = Ranks()


@contextmanager
def joined_ranks(device: str) -> Iterator[Ranks]:
    """Join the process group that torchrun set up in the environment; yield a single rank if there is none."""
    if "RANK" not in os.environ:
        yield ALONE
        return
    from torch import distributed

    # gloo in addition to NCCL: for objects in CPU memory.
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    distributed.init_process_group(backend, timeout=TIMEOUT)
    try:
        yield Ranks(
            rank=distributed.get_rank(),
            size=distributed.get_world_size(),
            local_rank=int(os.environ["LOCAL_RANK"]),
            local_size=int(os.environ["LOCAL_WORLD_SIZE"]),
        )
    finally:
        distributed.destroy_process_group()
