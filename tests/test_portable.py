"""Tests of the portable block: in training and decoding it computes what transformers does with the same weights."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from niels_gpt.base.family import config_from_gguf, family_for, family_of
from niels_gpt.config import ModelConfig
from niels_gpt.model.decoder import Decoder
from niels_gpt.model.gpt import GPT

pytestmark = pytest.mark.slow  # loads transformers

NOTHING_TO_COMPARE = "transformers is not installed: nothing to compare with"
BASE = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-3,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one key for all queries": {"num_key_value_heads": 1},
    "a key for every query": {"num_key_value_heads": 6},
    "a head of its own": {"tie_word_embeddings": False},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "wide heads": {"head_dim": 10},
    "narrow heads": {"head_dim": 2},
    "one head": {"num_attention_heads": 1, "num_key_value_heads": 1},
    "epsilon": {"rms_norm_eps": 0.5},
}
EVERY = pytest.mark.parametrize("change", CHANGES)
FAMILY = pytest.mark.parametrize("family", ["llama", "qwen3"])


def theirs(family: str, change: str = "plain") -> Any:
    """Return a tiny transformers model with random weights, so that every parameter affects its output."""
    transformers = pytest.importorskip("transformers", reason=NOTHING_TO_COMPARE)
    config = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[family]
    model = {"llama": transformers.LlamaForCausalLM, "qwen3": transformers.Qwen3ForCausalLM}[family]
    torch.manual_seed(0)
    made = model(config(**{**BASE, **CHANGES[change]}, attn_implementation="eager"))
    for name, parameter in made.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    return made.eval()


def imported(reference: Any) -> GPT:
    config = reference.config.to_dict()
    family = family_of(config)
    cfg = family.model_config(config)
    model = GPT(cfg).eval()
    model.load_state_dict(family.weights_from(reference.state_dict(), cfg, "transformers"))
    return model


def ids(rows: int = 2, T: int = 40, V: int = 61) -> torch.Tensor:
    return torch.randint(0, V, (rows, T), generator=torch.Generator().manual_seed(1))


@FAMILY
@EVERY
def test_logits_loss_and_gradients_are_those_of_transformers(family: str, change: str) -> None:
    reference = theirs(family, change)
    model, x, y = imported(reference), ids(), ids().flip(1)
    assert model.parameter_count() == sum(p.numel() for p in reference.parameters())
    logits = reference(x).logits
    torch.testing.assert_close(model(x), logits, atol=1e-4, rtol=1e-4)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")
    ours = model.summed_loss(model.hidden(model.embed(x)), y)
    torch.testing.assert_close(ours, loss, atol=1e-3, rtol=1e-5)
    loss.backward()
    ours.backward()
    # Weights are mapped by a permutation, which is linear, so it maps gradients as well.
    grads = {name: p.grad for name, p in reference.named_parameters()}
    wanted = family_of(reference.config.to_dict()).weights_from(grads, model.cfg, "transformers")
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, wanted[name], atol=1e-4 * float(wanted[name].abs().max()), rtol=1e-3)


@FAMILY
@EVERY
def test_decoding_with_a_cache_gives_the_logits_of_the_whole_text(family: str, change: str) -> None:
    model, x = imported(theirs(family, change)), ids()
    with torch.inference_mode():
        whole, decoder = model(x), Decoder(model, B=2)
        steps = [(0, 17), (17, 18), (18, 19), (19, 40)]
        parts = [decoder.extend(x[:, a:b], starts=[a, a]) for a, b in steps]
        torch.testing.assert_close(model.logits(torch.cat(parts, dim=1)), whole, atol=1e-4, rtol=1e-4)
        # Rows of different lengths, extended by one token each.
        apart = Decoder(model, B=2)
        apart.extend(x[:1, :30], starts=[0])
        apart.extend(x[1:, :9], starts=[0], first=1)
        hidden = apart.extend(torch.stack((x[0, 30:31], x[1, 9:10])), starts=[30, 9])
        wanted = torch.stack((whole[0, 30:31], whole[1, 9:10]))
        torch.testing.assert_close(model.logits(hidden), wanted, atol=1e-4, rtol=1e-4)
    cfg = model.cfg
    assert decoder._blocks[0].kv.shape[1] == 2 * cfg.K, "the cache holds no copies for the queries of a group"


@FAMILY
@EVERY
def test_weights_go_out_as_they_came_in(family: str, change: str) -> None:
    reference = theirs(family, change)
    model, given = imported(reference), dict(reference.state_dict())
    if model.cfg.tied:
        del given["lm_head.weight"]
    own = family_for(model.cfg)
    assert own is not None
    assert own.name == family
    again = own.weights_to(model.state_dict(), model.cfg, "transformers")
    assert set(again) == set(given)
    assert all(torch.equal(again[name], given[name]) for name in given)
    through_gguf = own.weights_from(own.weights_to(model.state_dict(), model.cfg, "gguf"), model.cfg, "gguf")
    assert all(torch.equal(through_gguf[name], value) for name, value in model.state_dict().items())
    assert own.model_config(own.transformers_config(model.cfg)) == model.cfg
    fields = {f"{family}.{key}": value for key, value in own.gguf_fields(model.cfg).items()}
    fields["general.architecture"] = family
    read = config_from_gguf(fields, own.weights_to(model.state_dict(), model.cfg, "gguf"))
    assert own.model_config(read) == model.cfg


def test_a_norm_without_gains_goes_out_with_gains_of_one() -> None:
    cfg = replace(imported(theirs("qwen3")).cfg, qk_gain=False)
    model = GPT(cfg).eval()
    family = family_for(cfg)
    assert family is not None
    transformers = pytest.importorskip("transformers", reason=NOTHING_TO_COMPARE)
    config = transformers.Qwen3Config(**family.transformers_config(cfg))
    reference = transformers.Qwen3ForCausalLM(config).eval()
    weights = family.weights_to(model.state_dict(), cfg, "transformers")
    assert not reference.load_state_dict(weights, strict=False).unexpected_keys
    torch.testing.assert_close(reference(ids()).logits, model(ids()), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "option",
    [{"norm": "layer"}, {"bias": True}, {"activation": "relu2"}, {"value_residual": True}, {"logit_cap": 15.0}],
)
def test_another_block_has_no_family(option: dict[str, Any]) -> None:
    cfg = ModelConfig(norm="rms", bias=False, activation="swiglu", zero_init=True)
    assert family_for(cfg) is not None
    assert family_for(replace(cfg, **option)) is None


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"model_type": "mistral"}, "^mistral is not supported: take one of llama, qwen3$"),
        ({"model_type": None}, "a model without model_type is not supported"),
        ({"hidden_size": None}, "^config.json describes no llama model: hidden_size is missing$"),
        ({"hidden_size": "24"}, "describes no llama model: C must be a valid integer"),
        ({"num_key_value_heads": 4}, "describes no llama model: H=6 is not a multiple of kv_heads=4"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, r"has rope scaling \(llama3\)"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, r"has rope scaling \(linear\)"),
        ({"partial_rotary_factor": 0.5}, "has a partial rotation"),
        ({"use_sliding_window": True}, "has sliding-window attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "has sliding-window attention"),
        ({"attention_bias": True}, r"has biases \(attention_bias\)"),
        ({"mlp_bias": True}, r"has biases \(mlp_bias\)"),
        ({"hidden_act": "gelu"}, "has the activation gelu"),
        ({"quantization_config": {"quant_method": "awq"}}, "has quantized weights"),
    ],
)
def test_unsupported_features_of_a_config_are_refused_by_name(config: dict[str, Any], sentence: str) -> None:
    given = {"model_type": "llama", **BASE, **config}
    with pytest.raises(ValueError, match=sentence):
        family_of(given).model_config(given)


def test_theta_and_heads_of_older_configs_are_read() -> None:
    old = {"model_type": "llama", **BASE, "rope_parameters": None, "rope_scaling": None, "rope_theta": 1e5}
    del old["head_dim"], old["num_key_value_heads"]
    cfg = family_of(old).model_config(old)
    assert (cfg.rope_theta, cfg.K, cfg.D, cfg.T, cfg.head_dim, cfg.kv_heads) == (1e5, 6, 4, 64, None, None)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"model.layers.1.mlp.up_proj.weight": None}, "^the weights lack model.layers.1.mlp.up_proj.weight: the file"),
        (
            {"model.layers.0.self_attn.k_proj.weight": torch.zeros(24, 24)},
            r"^model.layers.0.self_attn.k_proj.weight has the shape \(24, 24\), but its config asks for \(12, 24\)$",
        ),
        (
            {"model.layers.0.self_attn.q_proj.bias": torch.zeros(24)},
            "^the weights have model.layers.0.self_attn.q_proj.b",
        ),
    ],
)
def test_missing_misshapen_and_unknown_tensors_are_refused_by_name(changed: dict[str, Any], sentence: str) -> None:
    reference = theirs("llama")
    tensors = {name: value for name, value in {**reference.state_dict(), **changed}.items() if value is not None}
    family = family_of(reference.config.to_dict())
    with pytest.raises(ValueError, match=sentence):
        family.weights_from(tensors, family.model_config(reference.config.to_dict()), "transformers")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"general.architecture": "gemma3"}, "^gemma3 is not supported"),
        ({"llama.block_count": None}, "has no field llama.block_count"),
        ({"llama.attention.value_length": 8}, "differ in width"),
        ({"llama.rope.scaling.type": "yarn"}, r"rope scaling \(yarn\)"),
    ],
)
def test_a_gguf_of_another_shape_is_refused_by_name(changed: dict[str, Any], sentence: str) -> None:
    family = family_of({"model_type": "llama"})
    cfg = family.model_config({"model_type": "llama", **BASE})
    fields = {f"llama.{key}": value for key, value in family.gguf_fields(cfg).items()}
    fields = {"general.architecture": "llama", **fields, **changed}
    with pytest.raises(ValueError, match=sentence):
        family.model_config(config_from_gguf({k: v for k, v in fields.items() if v is not None}, []))
