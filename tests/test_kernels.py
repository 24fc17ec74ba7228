"""The GPU kernels against plain torch, run by Triton's interpreter: what they compute, not how fast."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytest.importorskip("triton", reason="Triton is not installed: the GPU kernels are not tested here")

SCRIPT = """
import json, torch
from torch.nn import functional as F
from niels_gpt.model.kernels import loss_triton
from niels_gpt.model import rope
from niels_gpt.model.kernels import gelu_triton, rope_triton

torch.manual_seed(0)
gelu_triton._PROGRAMS = rope_triton._PROGRAMS = 5  # so that even here one sums over several rounds
errors = {}

def largest(ours, plain):
    return max(float((a - b).abs().max()) for a, b in zip(ours, plain))

for B, T, H, D in ((2, 7, 3, 8), (1, 50, 2, 16)):
    sin, cos = rope.rope_cache(T + 3, D)
    qkv = torch.randn(B, T, 3 * H * D, requires_grad=True)
    grads = [torch.randn(B, H, T, D) for _ in range(3)]
    bias = torch.randn(3 * H * D, requires_grad=True)
    ours = rope_triton.split_and_rotate(qkv, bias, sin, cos, H=H)
    q, k, v = (part.view(B, T, H, D).transpose(1, 2) for part in (qkv + bias).split(H * D, -1))
    plain = (*rope.apply_rope(q, k, sin, cos), v)
    ours_back, plain_back = (torch.autograd.grad(out, (qkv, bias), grads) for out in (ours, plain))
    errors[f"rope {T}"] = largest((*ours, *ours_back), (*plain, *plain_back))
for rows, columns in ((3, 20), (130, 600)):
    x, bias = (3 * torch.randn(rows, columns)).requires_grad_(), torch.randn(columns, requires_grad=True)
    grad, outs = torch.randn(rows, columns), []
    for y in (gelu_triton.biased_gelu(x, bias), F.gelu(x + bias)):
        outs.append((y, *torch.autograd.grad(y, (x, bias), grad)))
    errors[f"gelu {rows}"] = largest(*outs)
for V in (37, 20000):
    logits, y = torch.randn(6, V), torch.randint(0, V, (6,))
    y[2] = -100
    leaf = logits.clone().requires_grad_()
    (grad,) = torch.autograd.grad(F.cross_entropy(leaf, y, reduction="sum"), leaf)
    plain, losses = F.cross_entropy(logits, y, reduction="none"), loss_triton.losses_and_grad_(logits, y)
    errors[f"loss {V}"] = max(float((losses - plain).abs().max()), float((logits - grad).abs().max()))
print(json.dumps(errors))
"""


def test_kernels_compute_what_plain_torch_does() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env={"TRITON_INTERPRET": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    assert len(errors) == 6
    assert max(errors.values()) < 1e-5, errors
