"""Interfaces of the training loop: the task to train on, its batches, how steps are executed, and memory checks."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import nn

from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.model.kernels import dispatch
from niels_gpt.model.targets import count_targets, some_targets


@dataclass(frozen=True)
class Execution:
    """Settings of how steps are executed. They may change rounding, but not what is computed."""

    device: str = "cpu"
    compile: Literal["auto"] | bool = "auto"
    micro_batch_tokens: int | None = None  # gradient accumulation: most tokens per micro-batch; None: whole batch
    deterministic: bool = True
    ranks: Ranks = ALONE
    say: Callable[[str], None] = print

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")


def wants_compiler(execution: Execution) -> bool:
    """Return whether to use torch.compile; report it if it is wanted but a C compiler or Triton is missing.

    "auto" compiles on CUDA only: on two CPU cores it made steps slower.
    """
    if execution.compile is False or (execution.compile == "auto" and not execution.cuda):
        return False
    missing = None
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        missing = "a C compiler"
    elif execution.cuda and not dispatch.HAS_TRITON:
        missing = "triton"
    if missing:
        execution.say(f"not compiling the model: {missing} is not installed (runtime.compile: false silences this)")
    return missing is None


ALL = slice(None)  # rows of a batch


@dataclass(frozen=True)
class Batch:
    """Batch of inputs and targets (B, T); ignored targets are -100.

    When ranks share a batch, each has some of its rows, but `targets` and `rows` count the whole batch. Everything is
    packed into one tensor, so that a batch is copied to a GPU at once: x, y and, if given, position and segment ids,
    then the row numbers and the number of targets.
    """

    packed: torch.Tensor  # int64: len(parts) * B * T ids, B row numbers, 1 number of targets
    B: int  # rows that this rank has
    parts: tuple[str, ...]  # names of the (B, T) tensors
    rows: dict[str, int]  # rows of the whole batch by source

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
    ) -> "Batch":
        """Build a batch from x and y (B, T), which are the rows from number `first` on of the whole batch.

        `targets` counts those of the whole batch (None: these rows are all of it). `more`: position_ids, segment_ids.
        """
        parts = {"x": x, "y": y, **{name: value for name, value in more.items() if value is not None}}
        row_numbers = torch.arange(first, first + len(x), device=x.device)
        count = count_targets(y) if targets is None else some_targets(torch.tensor(targets, device=x.device))
        flat = (*(value.long().flatten() for value in parts.values()), row_numbers, count[None])
        return cls(packed=torch.cat(flat), B=len(x), parts=tuple(parts), rows=rows)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name, (B, T) each."""
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
        """Return the index in the whole batch of each row, (B,)."""
        return self.packed[-self.B - 1 : -1]

    @property
    def targets(self) -> torch.Tensor:
        return self.packed[-1]

    def to(self, device: str) -> "Batch":
        return replace(self, packed=self.packed.to(device, non_blocking=True))

    def pinned(self) -> "Batch":
        """Return a copy in pinned memory, for asynchronous copies to a GPU."""
        return replace(self, packed=self.packed.pin_memory())


class Task(Protocol):
    """Interface of a training task. Batch n is a function of (seed, n)."""

    @property
    def cfg(self) -> TrainConfig: ...
    @property
    def sources(self) -> tuple[str, ...]: ...
    @property
    def T(self) -> int:
        """Return the tokens per row, the same in all batches; shorter than the model's context only for spans."""
        ...

    def batch(self, n: int, rows: slice = ALL) -> Batch:
        """Return batch n, or only the given rows of it."""
        ...

    def describe(self, n: int) -> str:
        """Return where the rows of batch n come from, for error messages."""
        ...

    def prompt(self) -> list[int]:
        """Return the ids of held-out text to sample a continuation of."""
        ...

    def validate(self, model: nn.Module, ranks: Ranks = ALONE) -> dict[str, float]:
        """Return losses by name, the same on all ranks, which share the work; "val_loss" selects the best model."""
        ...


def check_memory(cfg: ModelConfig, *, B: int, execution: Execution, frozen: int = 0) -> None:
    """Raise if training this model with B rows per step cannot fit the device's memory; `frozen` blocks stay as is.

    The estimate is a lower bound, so that nothing is refused that would have run.
    """
    needed, there = least_memory(cfg, B=B, execution=execution, frozen=frozen), device_memory(execution.device)
    if sum(needed.values()) > there:
        parts = ", ".join(f"{what} {_shown(size)}" for what, size in needed.items())
        raise ValueError(
            f"training needs at least {_shown(sum(needed.values()))} of memory ({parts}), and {execution.device} has "
            f"{_shown(there)}: lower model.L, model.C or model.d_ff for the weights, B or model.T for the batch, "
            "runtime.micro_batch_tokens for the activations"
        )


def least_memory(cfg: ModelConfig, *, B: int, execution: Execution, frozen: int = 0) -> dict[str, int]:
    """Return a lower bound of the memory that training needs in each process, in bytes by purpose."""
    heads, inside = (cfg.H + cfg.K) * cfg.D, cfg.d_ff * (2 if cfg.activation == "swiglu" else 1)
    block, embedding = cfg.C * (2 * heads + inside + cfg.d_ff), cfg.V * cfg.C  # attention and MLP; embedding
    trained = (cfg.L - frozen) * block + (0 if frozen else embedding)
    rows = -(-B // execution.ranks.size)
    limit = execution.micro_batch_tokens or rows * cfg.T
    pieces = -(-rows // max(1, limit // cfg.T))
    at_once = -(-rows // pieces) * cfg.T
    # The backward pass needs q, k, v, the attention output, the residual stream and the input of the activation; the
    # rest can be recomputed. 2 bytes each, as in bf16.
    activations = 2 * at_once * (cfg.L - frozen) * (2 * heads + cfg.C + inside)
    return {
        # float32: weights, and of those trained gradients and at least one moment
        "weights and optimizer": 4 * (cfg.L * block + embedding) + 8 * trained,
        "the batch": 8 * rows * cfg.T,  # int64
        "activations": activations,
    }


def device_memory(device: str) -> int:
    """Return the total memory of a device in bytes."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _shown(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
