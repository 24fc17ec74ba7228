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
from niels_gpt import loss_triton
from niels_gpt.model import rope, rope_triton

torch.manual_seed(0)
errors = {}
for B, T, H, D in ((2, 7, 3, 8), (1, 50, 2, 16)):
    sin, cos = rope.rope_cache(T + 3, D)
    qkv = torch.randn(B, T, 3 * H * D, requires_grad=True)
    grads = [torch.randn(B, H, T, D) for _ in range(3)]
    ours = rope_triton.split_and_rotate(qkv, sin, cos, H=H)
    q, k, v = (part.view(B, T, H, D).transpose(1, 2) for part in qkv.split(H * D, -1))
    plain = (*rope.apply_rope(q, k, sin, cos), v)
    pairs = [*zip(ours, plain), (torch.autograd.grad(ours, qkv, grads)[0], torch.autograd.grad(plain, qkv, grads)[0])]
    errors[f"rope {T}"] = max(float((a - b).abs().max()) for a, b in pairs)
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
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    assert len(errors) == 4
    assert max(errors.values()) < 5e-6, errors
