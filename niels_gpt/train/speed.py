"""How much arithmetic a token is, and how much of it this machine does a second at its best."""

from __future__ import annotations

import time

import torch

from niels_gpt.config import ModelConfig
from niels_gpt.model.precision import Precision, stream_dtype


def flops_per_token(cfg: ModelConfig) -> int:
    """Floating-point operations of forward and backward: 6 a weight, and attention over half the context on average."""
    weights = cfg.L * (4 * cfg.C * cfg.C + 2 * cfg.C * cfg.d_ff) + cfg.V * cfg.C
    return 6 * weights + 6 * cfg.L * cfg.T * cfg.C


def matmul_flops(device: str, precision: Precision) -> float:
    """Operations a second of a large matrix product here, measured in a fraction of a second."""
    n = 8192 if device.startswith("cuda") else 1024
    a = torch.randn(n, n, device=device, dtype=stream_dtype(precision))

    def seconds(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            product = a @ a
        product[0, 0].item()  # waits for a GPU
        return time.perf_counter() - start

    seconds(2)
    return 2 * n**3 * 5 / seconds(5)
