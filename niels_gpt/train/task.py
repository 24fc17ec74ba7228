"""What a run trains on: the batch of every step, and a validation. The training loop knows no more than this."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import nn

from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.model.targets import count_targets, some_targets

ALL = slice(None)  # rows of a batch


@dataclass(frozen=True)
class Batch:
    """Inputs and targets (B, T), targets that do not count being -100; how many do; and rows by source. Of a batch that
    several processes share it has some of the rows, and the counts of all.

    Everything lies in one tensor, so that a batch is copied to a GPU in one piece: x, y and, if given, position and
    segment ids, then which row of the whole batch each one is.
    """

    packed: torch.Tensor  # `parts` times (B, T), B row numbers and the number of targets, int64
    B: int
    parts: tuple[str, ...]
    rows: dict[str, int]

    @classmethod
    def of(
        cls,
        x: torch.Tensor,
        y: torch.Tensor,
        rows: dict[str, int],
        *,
        first: int = 0,
        targets: int | None = None,
        **more: torch.Tensor | None,
    ) -> Batch:
        """Rows from number `first` of a batch on, that has so many `targets` in all (None: these are all of it).
        `more`: position_ids, segment_ids."""
        parts = {"x": x, "y": y, **{name: value for name, value in more.items() if value is not None}}
        row_numbers = torch.arange(first, first + len(x), device=x.device)
        count = count_targets(y) if targets is None else some_targets(torch.tensor(targets, device=x.device))
        flat = (*(value.long().flatten() for value in parts.values()), row_numbers, count[None])
        return cls(packed=torch.cat(flat), B=len(x), parts=tuple(parts), rows=rows)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """(B, T) each, by name."""
        stacked = self.packed[: -self.B - 1].view(len(self.parts), self.B, -1)
        return dict(zip(self.parts, stacked, strict=True))

    @property
    def x(self) -> torch.Tensor:
        return self.tensors["x"]

    @property
    def y(self) -> torch.Tensor:
        return self.tensors["y"]

    @property
    def row_numbers(self) -> torch.Tensor:
        """(B,): where in the whole batch its rows stood."""
        return self.packed[-self.B - 1 : -1]

    @property
    def targets(self) -> torch.Tensor:
        return self.packed[-1]

    def to(self, device: str) -> Batch:
        return replace(self, packed=self.packed.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        return replace(self, packed=self.packed.pin_memory())

    def copy_(self, other: Batch) -> None:
        """Overwrite this batch in place: a recorded CUDA graph reads it at a fixed address."""
        self.packed.copy_(other.packed, non_blocking=True)


class Task(Protocol):
    """Batch n is a function of (seed, n), and so is what `describe` says of its rows; of `batch` a process asks for the
    rows that are its own, and reads no others. `validate` gives losses by name, equal on all ranks, which share the
    work, and as "val_loss" the one that decides; `prompt` is held-out text for a sample of what the model writes."""

    @property
    def sources(self) -> tuple[str, ...]: ...
    @property
    def T(self) -> int:
        """Tokens of a row. All batches are of one size; only those of spans are narrower than the model's context."""
        ...

    def batch(self, n: int, rows: slice = ALL) -> Batch: ...
    def describe(self, n: int) -> str: ...
    def prompt(self) -> list[int]: ...
    def validate(self, model: nn.Module, ranks: Ranks = ALONE) -> dict[str, float]: ...
