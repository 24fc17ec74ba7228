"""Tests of the GPU kernels against plain torch, in Triton's interpreter: their results, not their speed."""

import json

import pytest

from tests.conftest import run_fresh_python

pytest.importorskip("triton", reason="Triton is not installed: the GPU kernels are not tested here")

SCRIPT = """
import json, torch
from dataclasses import replace
from torch import nn
from torch.nn import functional as F
from niels_gpt.config import ModelConfig
from niels_gpt.inference.sampling import noise_of
from niels_gpt.model import rope
from niels_gpt.model.blocks import Block
from niels_gpt.model.kernels import dispatch as choice
from niels_gpt.model.kernels import decoding_triton as decode_triton
from niels_gpt.model.kernels import training_triton as gelu_triton
from niels_gpt.model.kernels import training_triton as loss_triton
from niels_gpt.model.kernels import decoding_triton as noise_triton
from niels_gpt.model.kernels import decoding_triton as norm_triton
from niels_gpt.model.kernels import training_triton as rope_triton
from niels_gpt.model.loss import soft_cap
from tests.tiny_training import Doubled

torch.manual_seed(0)
gelu_triton._PROGRAMS = rope_triton._PROGRAMS = 5  # so that even here one sums over several rounds
errors = {}

def largest(ours, plain):
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1.0)) for a, b in zip(ours, plain))

for B, T, H, D in ((2, 7, 3, 8), (1, 50, 2, 16)):
    sin, cos = rope.rope_cache(T + 3, D)
    x, qkv = torch.randn(B, T, H * D, requires_grad=True), nn.Linear(H * D, 3 * H * D)
    grads = [torch.randn(B, H, T, D) for _ in range(3)]
    ours = rope_triton.project_and_rotate(qkv, x, sin, cos, H=H)
    q, k, v = (part.view(B, T, H, D).transpose(1, 2) for part in qkv(x).split(H * D, -1))
    plain = (*rope.apply_rope(q, k, sin, cos), v)
    ours_back, plain_back = (torch.autograd.grad(out, (x, *qkv.parameters()), grads) for out in (ours, plain))
    errors[f"rope {T}"] = largest((*ours, *ours_back), (*plain, *plain_back))
for rows, columns in ((3, 20), (130, 600)):
    x, linear = (3 * torch.randn(rows, 9)).requires_grad_(), nn.Linear(9, columns)
    grad, outs = torch.randn(rows, columns), []
    for y in (gelu_triton.project_and_gelu(linear, x), F.gelu(linear(x))):
        outs.append((y, *torch.autograd.grad(y, (x, *linear.parameters()), grad)))
    errors[f"gelu {rows}"] = largest(*outs)
for V, cap in ((37, None), (37, 2.0), (20000, None), (20000, 2.0)):
    logits, y = 3 * torch.randn(6, V), torch.randint(0, V, (6,))
    y[2] = -100
    leaf = logits.clone().requires_grad_()
    plain = F.cross_entropy(soft_cap(leaf, cap), y, reduction="none")
    (grad,) = torch.autograd.grad(plain.sum(), leaf)
    losses = loss_triton.losses_and_grad_(logits, y, cap)
    errors[f"loss {V} {cap}"] = largest((losses, logits), (plain.detach(), grad))

# New tokens at all kinds of places, one of them where no row goes on: against torch's attention over what is kept.
decode_triton._NUMBERS = 16 * 16  # so that even here one looks at several blocks of keys
for H, K, D in ((3, 3, 8), (2, 2, 12), (6, 2, 8), (4, 1, 10)):
    T = 70
    places, kv = torch.tensor([0, 1, 37, T - 1, T]), torch.randn(5, 2 * K, T + 3, D)
    angles, heads, before = torch.randn(5, D // 2), 2 * torch.randn(5, 1, H + 2 * K, D), kv.clone()
    turns = torch.polar(torch.ones(()), angles)
    out = decode_triton.attend_to_cache(heads, kv, places[:, None, None, None], turns[:, None, None], T=T)
    qk = heads[:, 0, : H + K].clone()
    torch.view_as_complex(qk.view(5, H + K, -1, 2)).mul_(turns[:, None])
    plain, kept = [], before
    for row, place in enumerate(places.tolist()):
        kept[row, :K, place], kept[row, K:, place] = qk[row, H:], heads[row, 0, H + K :]
        if place < T:
            k, v = kept[row, :, : place + 1].repeat_interleave(H // K, 0).chunk(2)
            plain.append(F.scaled_dot_product_attention(qk[row, :H, None], k, v)[:, 0])
    errors[f"decode {H} {K} {D}"] = largest((out[:4, 0], kv), (torch.stack(plain), kept))
    assert bool(out.isfinite().all())

for C, dtype in ((20, torch.float32), (64, torch.bfloat16)):
    x, added, weight, bias = torch.randn(2, 3, C), torch.randn(2, 3, C, dtype=dtype), torch.randn(C), torch.randn(C)
    ours = [
        *norm_triton.add_and_norm(x, added, weight, bias, eps=1e-5, centred=True),
        *norm_triton.add_and_norm(x, None, weight, None, eps=1e-5, centred=False),
    ]
    plain = [x + added, F.layer_norm(x + added, (C,), weight, bias), x, F.rms_norm(x, (C,), weight, 1e-5)]
    errors[f"norm {C}"] = largest(ours, plain)
keys, ids = torch.randint(-(1 << 62), 1 << 62, (3,)), torch.randint(0, 50000, (3, 1500))
ours = [noise_triton.hashed_noise(keys, ids, bits=23), noise_triton.hashed_noise(keys, torch.arange(2000), bits=23)]
errors["noise"] = largest(ours, [noise_of(keys, ids, V=2000), noise_of(keys, None, V=2000)])

cfg = ModelConfig(V=10, T=9, C=16, L=1, H=2, d_ff=24, dropout=0.0)
x, options = torch.randn(2, 9, 16), {"qk_norm": True, "activation": "relu2"}
# Where a layer is not exactly a Linear no kernel takes its weights: it is called. Nor where an option comes between.
between = (options, {"value_residual": True}, {"kv_heads": 1})
for swapped, changed in ((False, {}), (True, {}), *((False, changed) for changed in between)):
    block, outs = Block(replace(cfg, **changed)), []
    if swapped:
        block.attn.qkv, block.mlp.fc1 = Doubled(16, 48), Doubled(16, 24)
    for on_gpu in (True, False):
        choice._compiled_for_gpu = lambda x: on_gpu
        y = block(x)
        outs.append((y, *torch.autograd.grad(y.square().sum(), block.parameters())))
    errors[f"block {swapped} {changed}"] = largest(*outs)
    choice._compiled_for_gpu = lambda x: True
    assert (choice.training_kernels(block.attn.qkv, x) is None) == swapped
    assert (choice.training_kernels(block.mlp.fc1, x) is None) == swapped
    assert choice.training_kernels(nn.Linear(3, 3, bias=False), x) is None
print(json.dumps(errors))
"""


@pytest.mark.slow
def test_kernels_compute_what_plain_torch_does() -> None:
    done = run_fresh_python(SCRIPT, env={"TRITON_INTERPRET": "1", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    assert len(errors) == 20
    assert max(errors.values()) < 1e-5, errors
