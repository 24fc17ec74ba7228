"""The speed of this machine at its best: FLOPs (floating-point operations) a second."""

from __future__ import annotations

import time

import torch

from niels_gpt.model.precision import Precision, residual_dtype


def matmul_flops(device: str, precision: Precision) -> float:
    """FLOPs a second of a large matrix product here, measured in a fraction of a second."""
    n = 8192 if device.startswith("cuda") else 1024
    a = torch.randn(n, n, device=device, dtype=residual_dtype(precision))

    def seconds(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            product = a @ a
        product[0, 0].item()  # waits for a GPU
        return time.perf_counter() - start

    seconds(2)
    return 2 * n**3 * 5 / seconds(5)
