"""How the steps of a run are computed: device, compiler, gradient accumulation, data-parallel ranks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.model.kernels import choice


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
    elif execution.cuda and not choice.HAS_TRITON:
        missing = "triton"
    if missing:
        execution.say(f"not compiling the model: {missing} is not installed (runtime.compile: false asks no more)")
    return missing is None


def compiler_options(execution: Execution) -> dict[str, Any]:
    # Weights are cast by many small kernels: done side by side, 8% of a step at the smallest size.
    return {"combo_kernels": True, "benchmark_combo_kernel": False} if execution.cuda else {}
