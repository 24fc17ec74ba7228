"""What a run trains on: the batch of every step, and a validation. The training loop knows no more than this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from niels_gpt.model.gpt import GPT
from niels_gpt.model.targets import count_targets


@dataclass(frozen=True)
class Batch:
    """Inputs and targets (B, T), targets that do not count being -100; how many do; and rows by source.

    Everything lies in one tensor, so that a batch is copied to a GPU in one piece: x, y and, if given, position and
    segment ids, then which row of the whole batch each one is.
    """

    packed: torch.Tensor  # `parts` times (B, T), B row numbers and the number of targets, int64
    B: int
    parts: tuple[str, ...]
    rows: dict[str, int]

    @classmethod
    def of(cls, x: torch.Tensor, y: torch.Tensor, rows: dict[str, int], **more: torch.Tensor | None) -> Batch:
        """`more`: position_ids, segment_ids."""
        parts = {"x": x, "y": y, **{name: value for name, value in more.items() if value is not None}}
        row_numbers = torch.arange(len(x), device=x.device)
        flat = (*(value.long().flatten() for value in parts.values()), row_numbers, count_targets(y)[None])
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

    def take(self, rows: slice) -> Batch:
        """Some of the rows, still counted against the targets of all."""
        kept = [value[rows].flatten() for value in (*self.tensors.values(), self.row_numbers)]
        return replace(self, packed=torch.cat((*kept, self.packed[-1:])), B=len(kept[-1]))

    def to(self, device: str) -> Batch:
        return replace(self, packed=self.packed.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        return replace(self, packed=self.packed.pin_memory())

    def copy_(self, other: Batch) -> None:
        """Overwrite this batch in place: a recorded CUDA graph reads it at a fixed address."""
        self.packed.copy_(other.packed, non_blocking=True)


class Task(Protocol):
    """Batch n is a function of (seed, n), and so is what `describe` says of its rows. `validate` gives losses by name,
    and as "val_loss" the one that decides; `prompt` is held-out text for a sample of what the model writes."""

    @property
    def sources(self) -> tuple[str, ...]: ...
    @property
    def T(self) -> int:
        """Tokens of a row. All batches are of one size; only those of spans are narrower than the model's context."""
        ...

    def batch(self, n: int) -> Batch: ...
    def describe(self, n: int) -> str: ...
    def prompt(self) -> list[int]: ...
    def validate(self, model: GPT) -> dict[str, float]: ...


class Mapped(Protocol):
    """Tokens in memory-mapped files."""

    def release(self) -> None: ...


def release(sources: Mapping[str, Mapped]) -> None:
    """Unmap what was read of token files, so that a run's memory does not grow: see niels_gpt.files.pages."""
    for source in sources.values():
        source.release()
