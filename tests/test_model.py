"""Tests of the model: RoPE, attention, shapes, initial weights, and options of the block."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from niels_gpt.config import ModelConfig, to_dict
from niels_gpt.model import rope
from niels_gpt.model.blocks import MLP, Block, CausalSelfAttention
from niels_gpt.model.decoder import Decoder
from niels_gpt.model.gpt import GPT
from niels_gpt.model.kernels import dispatch
from niels_gpt.model.size import flops_per_token, parameter_count
from tests.tiny_training import Doubled

CFG = ModelConfig(V=50, T=16, C=32, L=2, H=4, d_ff=64, dropout=0.0)
OPTIONS: dict[str, Any] = {
    "norm": "rms",
    "norm_eps": 0.5,
    "bias": False,
    "activation": "swiglu",
    "kv_heads": 2,
    "head_dim": 6,
    "qk_norm": True,
    "qk_gain": True,
    "value_residual": True,
    "zero_init": True,
    "tied": False,
    "logit_cap": 3.0,
}
CONFIGS = {
    "plain": CFG,
    **{
        name: replace(CFG, **{name: value, "qk_norm": name in ("qk_norm", "qk_gain")})
        for name, value in OPTIONS.items()
    },
    "relu2": replace(CFG, activation="relu2"),
    "all": replace(CFG, **OPTIONS),
}


def varied(cfg: ModelConfig) -> GPT:
    """Return a model with random weights, so that every parameter affects its output."""
    torch.manual_seed(0)
    model = GPT(cfg).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_rope_turns_adjacent_pairs_by_position_times_frequency(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both implementations are tested: complex numbers for a CPU, and the one for other devices."""
    T, D = 5, 6
    sin, cos = rope.rope_cache(T, D, theta=100.0)
    assert sin.shape == cos.shape == (1, 1, T, D // 2)
    q = torch.randn(2, 3, T, D)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "device", SimpleNamespace(type=device))
        turned, _ = rope.apply_rope(q, q.clone(), sin, cos)
    assert turned.shape == q.shape
    for t in range(T):
        for i in range(D // 2):
            angle = t * 100.0 ** (-2 * i / D)
            a, b = q[..., t, 2 * i], q[..., t, 2 * i + 1]
            torch.testing.assert_close(turned[..., t, 2 * i], a * math.cos(angle) - b * math.sin(angle))
            torch.testing.assert_close(turned[..., t, 2 * i + 1], a * math.sin(angle) + b * math.cos(angle))


def test_rope_scores_depend_on_distance_alone() -> None:
    sin, cos = rope.rope_cache(32, 8)
    q, k = torch.randn(1, 1, 1, 8).expand(1, 1, 32, 8), torch.randn(1, 1, 1, 8).expand(1, 1, 32, 8)
    q, k = rope.apply_rope(q, k, sin, cos)
    scores = (q @ k.transpose(-2, -1))[0, 0]
    for distance in (0, 1, 7):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4, rtol=1e-4)


def test_rope_keeps_dtype_slices_a_longer_cache_and_refuses_an_odd_width() -> None:
    sin, cos = rope.rope_cache(64, 8, dtype=torch.bfloat16)
    assert sin.dtype == torch.bfloat16
    # Angles are computed in float32, so a bf16 sine is rounded only once, by at most half a unit in the last place.
    torch.testing.assert_close(sin.float(), rope.rope_cache(64, 8)[0], atol=4e-3, rtol=0)
    q = torch.randn(1, 2, 5, 8, dtype=torch.bfloat16)
    turned, _ = rope.apply_rope(q, q, sin, cos)
    assert turned.shape == q.shape
    assert turned.dtype == q.dtype
    with pytest.raises(AssertionError):
        rope.rope_cache(4, 7)
    with pytest.raises(AssertionError):
        rope.apply_rope(torch.randn(1, 1, 4, 7), torch.randn(1, 1, 4, 7), sin, cos)


def test_rope_asked_for_float64_is_computed_in_it_to_the_end() -> None:
    T, D, theta = 4000, 8, 10000.0
    sin, cos = rope.rope_cache(T, D, theta=theta, dtype=torch.float64)
    assert sin.dtype == cos.dtype == torch.float64
    angles = [(T - 1) * theta ** (-2 * i / D) for i in range(D // 2)]
    # In float32 such angles would be off by 1e-4, and rotated values by 1e-7.
    for table, function in ((sin, math.sin), (cos, math.cos)):
        assert table[0, 0, -1].tolist() == pytest.approx([function(angle) for angle in angles], abs=1e-11)
    q = torch.randn(1, 2, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turned, back = rope.apply_rope(q, q.flip(-1), sin, cos)
    assert turned.dtype == back.dtype == torch.float64
    for i, angle in enumerate(angles):
        a, b = q[..., -1, 2 * i], q[..., -1, 2 * i + 1]
        torch.testing.assert_close(
            turned[..., -1, 2 * i], a * math.cos(angle) - b * math.sin(angle), atol=1e-10, rtol=0
        )
    torch.testing.assert_close(rope.apply_rope(turned, back, -sin, cos)[0], q, atol=1e-12, rtol=0)


def test_rope_angles_are_computed_in_float32_for_float32() -> None:
    sin, _ = rope.rope_cache(4000, 8)
    frequencies = 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float32) / 8)
    expected = (torch.arange(4000, dtype=torch.float32)[:, None] * frequencies).sin()
    torch.testing.assert_close(sin[0, 0], expected, atol=1e-6, rtol=0)


def test_attention_calls_rope_once_through_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = rope.apply_rope
    monkeypatch.setattr(rope, "apply_rope", lambda *args: calls.append(1) or real(*args))  # type: ignore[func-returns-value]
    CausalSelfAttention(CFG)(torch.randn(1, 4, CFG.C))
    assert calls == [1]


@pytest.mark.parametrize("kv_heads", [None, 2, 1])
def test_the_fused_path_equals_the_one_that_returns_probabilities(kv_heads: int | None) -> None:
    attention = CausalSelfAttention(replace(CFG, kv_heads=kv_heads)).eval()
    x = torch.randn(2, 9, CFG.C)
    out, attn = attention(x, return_attn=True)
    torch.testing.assert_close(attention(x), out, atol=1e-5, rtol=1e-5)
    assert attn.shape == (2, CFG.H, 9, 9)
    torch.testing.assert_close(attn.sum(-1), torch.ones(2, CFG.H, 9))
    assert attn.triu(1).abs().max() == 0
    block = Block(CFG).eval()
    torch.testing.assert_close(block(x), block(x, return_attn=True)[0], atol=1e-5, rtol=1e-5)


def test_unfused_attention_is_for_bf16_on_a_cpu_and_short_contexts() -> None:
    q = torch.zeros(1, 1, 512, 2, dtype=torch.bfloat16)
    assert dispatch.faster_unfused(q)
    assert not dispatch.faster_unfused(q.float())
    assert not dispatch.faster_unfused(torch.zeros(1, 1, 513, 2, dtype=torch.bfloat16))


@pytest.mark.parametrize("V", [20, 2049])
def test_the_embedding_of_a_gpu_has_the_values_and_gradients_of_torchs(V: int) -> None:
    table, ids, grad = torch.randn(V, 8, requires_grad=True), torch.randint(0, V, (3, 50)), torch.randn(3, 50, 8)
    results = []
    for rows in (dispatch.Embedding.apply(ids, table, torch.float32), torch.nn.functional.embedding(ids, table)):
        results.append((rows, *torch.autograd.grad(rows, table, grad)))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])


def test_gelu_on_a_cpu_has_torchs_values_and_its_gradient() -> None:
    scattered = torch.randn(64, 33, generator=torch.Generator().manual_seed(0)) * 3
    x = torch.cat((scattered, torch.tensor([0.0, -0.0, 1e-20, 9.0, -9.0, 30.0, -30.0, 1e20, -1e20]).expand(33, -1).T))
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    own, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    out, wanted = dispatch.Gelu.apply(own), torch.nn.functional.gelu(exact)
    torch.testing.assert_close(out, wanted.float(), rtol=1e-6, atol=1e-6)
    out.backward(grad)
    wanted.backward(grad.double())
    assert own.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(own.grad, exact.grad.float(), rtol=1e-6, atol=3e-6)


def test_gelus_own_gradient_is_for_float32_that_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_ARM", True)
    x, called = torch.randn(3, requires_grad=True), []
    apply = dispatch.Gelu.apply
    monkeypatch.setattr(dispatch.Gelu, "apply", lambda x: called.append(x.shape) or apply(x))
    dispatch.gelu(x.detach())
    dispatch.gelu(x.bfloat16())
    with torch.no_grad():
        dispatch.gelu(x)
    assert called == []
    dispatch.gelu(x)
    MLP(CFG)(torch.randn(2, 3, CFG.C))
    assert called == [(3,), (2, 3, CFG.d_ff)]
    monkeypatch.setattr(dispatch, "_ARM", False)  # other CPUs, where torch's own is faster
    MLP(CFG)(torch.randn(2, 3, CFG.C))
    assert len(called) == 2


@pytest.mark.parametrize("name", ["attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"])
def test_a_linear_layer_put_in_place_of_another_is_called_by_block_and_decoder(name: str) -> None:
    torch.manual_seed(0)
    models, x = [GPT(CFG).eval() for _ in range(3)], torch.randint(0, CFG.V, (2, 6))
    plain, swapped, doubled = models
    for model in models:
        model.load_state_dict(plain.state_dict())
        torch.nn.init.normal_(model.blocks[0].get_parameter(f"{name}.bias"), generator=torch.Generator().manual_seed(1))
    linear = plain.blocks[0].get_submodule(name)
    assert isinstance(linear, torch.nn.Linear)
    other = Doubled(linear.in_features, linear.out_features)
    other.load_state_dict(linear.state_dict())
    swapped.blocks[0].set_submodule(name, other)
    with torch.inference_mode():
        for parameter in doubled.blocks[0].get_submodule(name).parameters():
            parameter.mul_(2)
        expected = doubled(x)
        assert not torch.allclose(plain(x), expected, atol=1e-3)
        torch.testing.assert_close(swapped(x), expected)
        torch.testing.assert_close(swapped.logits(Decoder(swapped, B=2).extend(x, starts=[0, 0])), expected)


def test_the_size_of_a_configuration_is_that_of_its_model() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    count = parameter_count(CFG)
    assert torch.equal(torch.get_rng_state(), before), "counting draws no random numbers"
    assert count == sum(p.numel() for p in GPT(CFG).parameters())
    multiplied = 4 * (4 * 256**2 + 2 * 256 * 1024) + 256 * 256
    assert flops_per_token(GPT(ModelConfig()), T=128) == 6 * multiplied + 6 * 4 * 128 * 256


def test_no_position_sees_a_later_one() -> None:
    model = GPT(CFG).eval()
    x = torch.randint(0, CFG.V, (1, CFG.T))
    changed = x.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % CFG.V
    torch.testing.assert_close(model(x)[:, :10], model(changed)[:, :10])
    assert not torch.allclose(model(x)[:, 10], model(changed)[:, 10])


def test_shapes_tying_and_context() -> None:
    model = GPT(CFG)
    assert model.lm_head.weight is model.tok_emb.weight
    logits = model(torch.zeros(3, 5, dtype=torch.int64))
    assert logits.shape == (3, 5, CFG.V)
    assert logits.dtype == torch.float32
    with pytest.raises(ValueError, match="do not fit"):
        model(torch.zeros(1, CFG.T + 1, dtype=torch.int64))


@pytest.mark.parametrize("part", [Block, CausalSelfAttention])
def test_a_part_alone_refuses_more_than_its_context(part: type[torch.nn.Module]) -> None:
    module = part(CFG)
    module(torch.zeros(1, CFG.T, CFG.C))
    with pytest.raises(ValueError, match="17 tokens do not fit the context of T=16"):
        module(torch.zeros(1, CFG.T + 1, CFG.C))


def test_a_config_dict_builds_the_same_model() -> None:
    model = GPT(to_dict(CFG))
    assert model.cfg == CFG
    model.load_state_dict(GPT(CFG).state_dict())


def test_initial_weights_are_as_the_contract_says() -> None:
    torch.manual_seed(0)
    model = GPT(ModelConfig(V=512, T=8, C=128, L=1, H=2, d_ff=512, dropout=0.0))
    assert abs(model.tok_emb.weight.std().item() - 0.02) < 1e-3
    mlp: MLP = model.blocks[0].mlp  # type: ignore[assignment]
    assert mlp.fc1.weight.std().item() == pytest.approx(0.02, abs=1e-3)
    assert mlp.fc1.bias.abs().max() == 0
    assert mlp.fc2.bias is not None
    assert (model.ln_f.weight == 1).all()
    assert (model.ln_f.bias == 0).all()


def test_dropout_acts_in_training_only() -> None:
    model = GPT(ModelConfig(V=50, T=16, C=32, L=1, H=4, d_ff=64, dropout=0.5))
    x = torch.randint(0, 50, (2, 8))
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_every_option_is_tried_here() -> None:
    assert set(OPTIONS) == set(ModelConfig.__dataclass_fields__) - set(to_dict(CFG))
    assert CONFIGS["all"].options == OPTIONS
    assert CFG.options == {}


@pytest.mark.parametrize("name", CONFIGS)
def test_with_every_option_the_decoder_computes_what_the_model_does(name: str) -> None:
    model, x = varied(CONFIGS[name]), torch.randint(0, CFG.V, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        decoder = Decoder(model, B=2)
        pieces = [decoder.extend(x[:, a:b], starts=[a, a]) for a, b in ((0, 5), (5, 6), (6, 12))]
        torch.testing.assert_close(model.logits(torch.cat(pieces, dim=1)), model(x), atol=1e-4, rtol=1e-4)
    if name not in ("plain", "zero_init"):  # zero_init affects the initial weights only
        other, weights = varied(CFG), model.state_dict()
        shared = {key: weights.get(key, value) for key, value in other.state_dict().items()}
        if all(shared[key].shape == value.shape for key, value in other.state_dict().items()):
            other.load_state_dict(shared)
        assert not torch.allclose(other(x), model(x), atol=1e-3), "the option does nothing"


@pytest.mark.parametrize("name", CONFIGS)
def test_with_every_option_the_loss_is_that_of_the_logits(name: str) -> None:
    model, dice = varied(CONFIGS[name]), torch.Generator().manual_seed(1)
    x, y = torch.randint(0, CFG.V, (2, 2, 12), generator=dice)
    y[0, 3] = -100
    plain = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")
    torch.testing.assert_close(model.token_losses(model.hidden(model.embed(x)), y).flatten(), plain.detach())
    ours = model.summed_loss(model.hidden(model.embed(x)), y)
    torch.testing.assert_close(ours, plain.sum())
    grads = (torch.autograd.grad(loss, list(model.parameters())) for loss in (ours, plain.sum()))
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4 * float(theirs.abs().max()), rtol=1e-3)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_stored_config_brings_every_option_back(name: str) -> None:
    cfg = CONFIGS[name]
    assert ModelConfig.from_dict(to_dict(cfg)) == cfg
    model = GPT(to_dict(cfg))
    model.load_state_dict(GPT(cfg).state_dict())
    assert parameter_count(cfg) == sum(p.numel() for p in model.parameters())


def test_a_plain_models_config_is_what_it_was_before_there_were_options() -> None:
    assert set(to_dict(CFG)) == {"V", "T", "C", "L", "H", "d_ff", "dropout", "rope_theta", "D"}


def test_norms_and_biases() -> None:
    names = set(GPT(CONFIGS["bias"]).state_dict())
    assert not any(name.endswith("bias") for name in names)
    x = torch.randn(3, CFG.C)
    norm = GPT(CONFIGS["norm"]).ln_f
    torch.testing.assert_close(norm(x)[1], x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    assert norm(x.bfloat16())[1].dtype == torch.float32


def test_attention_scores_with_qk_norm_do_not_grow_with_the_weights() -> None:
    torch.manual_seed(0)
    plain, normed = (CausalSelfAttention(replace(CFG, qk_norm=qk_norm)).eval() for qk_norm in (False, True))
    normed.load_state_dict(plain.state_dict())
    x, seen = torch.randn(1, 8, CFG.C), []
    for attention in (plain, normed):
        before = attention(x, return_attn=True)[1]
        with torch.no_grad():
            for parameter in attention.qkv.parameters():
                parameter[: 2 * CFG.C] *= 50  # queries and keys
        seen.append((before - attention(x, return_attn=True)[1]).abs().max().item())
    assert seen[0] > 0.05
    assert seen[1] < 1e-3  # only the norm's epsilon remains


def test_a_value_residual_brings_the_first_blocks_values() -> None:
    model, x = varied(replace(CFG, value_residual=True)), torch.zeros(1, 6, dtype=torch.int64)
    second = model.blocks[1].attn
    before = model(x)
    with torch.no_grad():
        second.qkv.weight[2 * CFG.C :] += 1
        assert not torch.allclose(model(x), before, atol=1e-3)
        second.value_shares.copy_(torch.tensor([0.0, 1.0]))
        only_first = model(x)
        second.qkv.weight[2 * CFG.C :] -= 1
        torch.testing.assert_close(model(x), only_first)


def test_first_weights_of_options() -> None:
    model = GPT(replace(CFG, zero_init=True, tied=False))
    x = torch.arange(6)[None]
    torch.testing.assert_close(model.hidden(model.embed(x)), model.ln_f(model.embed(x))[1])
    assert model.lm_head.weight.abs().max() == 0
    tied = GPT(replace(CFG, zero_init=True))
    assert tied.lm_head.weight is tied.tok_emb.weight
    assert tied.tok_emb.weight.abs().max() > 0
    assert flops_per_token(GPT(replace(CFG, tied=False)), T=8) == flops_per_token(GPT(CFG), T=8)


def test_a_learned_mix_begins_with_half_of_each_blocks_values() -> None:
    for block in GPT(CONFIGS["all"]).blocks:
        assert block.attn.value_shares.tolist() == [0.5, 0.5]  # type: ignore[union-attr, operator]


def test_the_square_of_relu() -> None:
    mlp, x = MLP(CONFIGS["relu2"]), torch.randn(5, CFG.C)
    torch.testing.assert_close(mlp(x), mlp.fc2(mlp.fc1(x).clamp(min=0) ** 2))


def test_no_logit_is_beyond_the_cap() -> None:
    free, model = varied(CFG), varied(CONFIGS["logit_cap"])
    with torch.no_grad():
        for one in (free, model):
            one.ln_f.weight.mul_(10)
    x = torch.randint(0, CFG.V, (4, 12), generator=torch.Generator().manual_seed(1))
    assert free(x).abs().max() > 6
    assert model(x).abs().max() <= 3
    torch.testing.assert_close(model(x), 3 * torch.tanh(free(x) / 3))


def test_a_model_section_gives_heads_by_number_or_by_width() -> None:
    assert ModelConfig.from_section({"C": 64, "H": 4}).H == ModelConfig.from_section({"C": 64, "head_dim": 16}).H == 4
    assert ModelConfig.from_section({"C": 64, "H": 4, "head_dim": 16}) == ModelConfig(C=64, H=4)
    assert ModelConfig.from_section({"C": 64, "H": 6, "head_dim": 32}).D == 32
    for wrong, sentence in (
        ({"C": 64}, "give H"),
        ({"C": 64, "H": None, "head_dim": 24}, "C=64 is not a multiple of head_dim=24"),
    ):
        with pytest.raises(ValueError, match=sentence):
            ModelConfig.from_section(wrong)
