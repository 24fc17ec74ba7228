"""Ranks: several processes on one job, each with its share of the work, and what they tell each other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch  # nobody waits for it who has no company

T = TypeVar("T")
# The longest that ranks wait for one of them: longer than it may take to write a checkpoint, compile, or hash its copy
# of the token files, and short enough to notice a host without power or network, which closes no connection.
TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class Ranks:
    """This process among `size` that train together. Every one knows the whole batch and takes its own rows of it."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among those of its host
    local_size: int = 1
    host: int = 0

    @property
    def first(self) -> bool:
        """The one that logs and writes."""
        return self.rank == 0

    def rows(self, B: int) -> slice:
        """This rank's part of the B rows of a step: one at least."""
        if self.size > B:
            raise ValueError(f"{self.size} processes for B={B} rows a step: lower runtime.nproc, or raise B")
        return self.share(B)

    def files(self, files: Sequence[T]) -> Sequence[T]:
        """This rank's part of the files to check. Hosts have copies of their own, and each host's ranks check all."""
        return files[self.local_rank :: self.local_size]

    def share(self, n: int) -> slice:
        """This rank's part of n things; the parts differ by one at most."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """In place, over all ranks."""
        if self.size > 1:
            from torch import distributed

            distributed.all_reduce(values)
        return values

    def any(self, flag: bool, *, device: str) -> bool:
        """Whether it is so on any rank: they must stop at the same step, or wait for each other for ever."""
        if self.size == 1:
            return flag
        import torch

        return bool(self.sum(torch.tensor(float(flag), device=device)) > 0)

    def exchange(self, value: T) -> list[T]:
        """What every rank has, in their order: the same list on all."""
        if self.size == 1:
            return [value]
        from torch import distributed

        box: list[Any] = [None] * self.size
        distributed.all_gather_object(box, value)
        return box

    def summed(self, parts: Mapping[str, float]) -> dict[str, float]:
        """Sums over all ranks, added up in their order, so that no two ranks differ by a bit."""
        everyone = self.exchange(dict(parts))
        return {name: sum(one[name] for one in everyone) for name in parts}

    def from_first(self, value: Any) -> Any:
        """What rank 0 has."""
        if self.size == 1:
            return value
        from torch import distributed

        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]


ALONE = Ranks()


@contextmanager
def joined_ranks(device: str) -> Iterator[Ranks]:
    """The group that torchrun describes in the environment; a single rank where there is none."""
    if "RANK" not in os.environ:
        yield ALONE
        return
    from torch import distributed

    # gloo beside NCCL: for objects in CPU memory.
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    distributed.init_process_group(backend, timeout=TIMEOUT)
    try:
        yield Ranks(
            rank=distributed.get_rank(),
            size=distributed.get_world_size(),
            local_rank=int(os.environ["LOCAL_RANK"]),
            local_size=int(os.environ["LOCAL_WORLD_SIZE"]),
            host=int(os.environ["GROUP_RANK"]),
        )
    finally:
        distributed.destroy_process_group()
