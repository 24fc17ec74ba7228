"""What a run trains on and how: the task, the execution of its steps, and the memory it needs.

The training loop knows no more than this.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import nn

from niels_gpt.config import ModelConfig
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.model.kernels import dispatch
from niels_gpt.model.targets import count_targets, some_targets


@dataclass(frozen=True)
class Execution:
    """How steps are computed. Rounding may depend on it; what is computed does not."""

    device: str = "cpu"
    compile: Literal["auto"] | bool = "auto"
    micro_batch_tokens: int | None = None  # gradient accumulation: most tokens at once; None: the whole batch
    deterministic: bool = True
    ranks: Ranks = ALONE
    say: Callable[[str], None] = print

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")


def wants_compiler(execution: Execution) -> bool:
    """Whether to use torch.compile: auto is for CUDA alone, since on two CPU cores it made steps slower. Where there is
    no C compiler, one line says so."""
    if execution.compile is False or (execution.compile == "auto" and not execution.cuda):
        return False
    missing = None
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        missing = "a C compiler"
    elif execution.cuda and not dispatch.HAS_TRITON:
        missing = "triton"
    if missing:
        execution.say(f"not compiling the model: {missing} is not installed (runtime.compile: false asks no more)")
    return missing is None


def compiler_options(execution: Execution) -> dict[str, Any]:
    # Weights are cast by many small kernels: done side by side, 8% of a step at the smallest size.
    return {"combo_kernels": True, "benchmark_combo_kernel": False} if execution.cuda else {}


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


def check_memory(cfg: ModelConfig, *, B: int, execution: Execution) -> None:
    """Raise where training this model with B rows a step cannot fit the device's memory.

    Only what is certain is counted, so that nothing is refused that would have run.
    """
    needed, there = least_memory(cfg, B=B, execution=execution), device_memory(execution.device)
    if sum(needed.values()) > there:
        parts = ", ".join(f"{what} {_shown(size)}" for what, size in needed.items())
        raise ValueError(
            f"training needs at least {_shown(sum(needed.values()))} of memory ({parts}), and {execution.device} has "
            f"{_shown(there)}: lower model.L, model.C or model.d_ff for the weights, B or model.T for the batch, "
            "runtime.micro_batch_tokens for the activations"
        )


def least_memory(cfg: ModelConfig, *, B: int, execution: Execution) -> dict[str, int]:
    """Return bytes by what they are for, in one process."""
    matrices = cfg.L * (4 * cfg.C**2 + 2 * cfg.C * cfg.d_ff) + cfg.V * cfg.C  # attention, MLP, embedding
    rows = -(-B // execution.ranks.size)
    limit = execution.micro_batch_tokens or rows * cfg.T
    pieces = -(-rows // max(1, limit // cfg.T))
    at_once = -(-rows // pieces) * cfg.T
    # The backward pass needs queries, keys, values, what attention gives, the residual and what goes into the
    # activation; the rest can be computed again. Two bytes each, as in bf16.
    activations = 2 * at_once * cfg.L * (5 * cfg.C + cfg.d_ff)
    return {
        "weights and optimizer": 12 * matrices,  # float32: weights, gradients, and at least one moment
        "the batch": 8 * rows * cfg.T,  # int64
        "activations": activations,
    }


def device_memory(device: str) -> int:
    """Return the bytes of memory that a device has in all."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _shown(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
