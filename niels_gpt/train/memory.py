"""The least memory that a training needs, and what there is: a refusal in a second instead of a kill after hours."""

from __future__ import annotations

import os

from niels_gpt.config import ModelConfig
from niels_gpt.train.execution import Execution


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
