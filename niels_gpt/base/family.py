"""Families of pretrained models (Llama, Qwen3): their configurations and the names of their weights.

Both have this project's portable block, and a model of this project that has it can be exported as one of them.

Rotary embeddings pair up dimensions of a head in one of two orders. This project and GGUF's `llama` pair neighbours
(2i, 2i + 1); transformers and GGUF's `qwen3` pair the halves (i, i + D/2). Where the orders differ, the rows of q and k
and their gains are permuted.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from niels_gpt.config import ModelConfig

_Weights = Mapping[str, torch.Tensor]
Form = Literal["transformers", "gguf"]

# Our name, and by form those of config.json of transformers (None: it has none) and of GGUF.
SHAPE = (
    ("T", "max_position_embeddings", "context_length"),
    ("C", "hidden_size", "embedding_length"),
    ("L", "num_hidden_layers", "block_count"),
    ("d_ff", "intermediate_size", "feed_forward_length"),
    ("H", "num_attention_heads", "attention.head_count"),
)
_SETTINGS = (
    *SHAPE,
    ("K", "num_key_value_heads", "attention.head_count_kv"),
    ("D", "head_dim", "attention.key_length"),
    ("D", None, "attention.value_length"),
    ("D", None, "rope.dimension_count"),
    ("rope_theta", None, "rope.freq_base"),
    ("norm_eps", "rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("V", "vocab_size", "vocab_size"),
)
# Our names and those by form, with shapes in the symbols of `_layout`. Both forms have q, k and v, which we store
# together, apart.
_WEIGHTS = {
    "tok_emb.weight": {"transformers": "model.embed_tokens.weight", "gguf": "token_embd.weight", "shape": "VC"},
    "ln1.weight": {"transformers": "input_layernorm.weight", "gguf": "attn_norm.weight", "shape": "C"},
    "q": {"transformers": "self_attn.q_proj.weight", "gguf": "attn_q.weight", "shape": "QC"},
    "k": {"transformers": "self_attn.k_proj.weight", "gguf": "attn_k.weight", "shape": "KC"},
    "v": {"transformers": "self_attn.v_proj.weight", "gguf": "attn_v.weight", "shape": "KC"},
    "attn.q_gain": {"transformers": "self_attn.q_norm.weight", "gguf": "attn_q_norm.weight", "shape": "D"},
    "attn.k_gain": {"transformers": "self_attn.k_norm.weight", "gguf": "attn_k_norm.weight", "shape": "D"},
    "attn.proj.weight": {"transformers": "self_attn.o_proj.weight", "gguf": "attn_output.weight", "shape": "CQ"},
    "ln2.weight": {"transformers": "post_attention_layernorm.weight", "gguf": "ffn_norm.weight", "shape": "C"},
    "mlp.gate.weight": {"transformers": "mlp.gate_proj.weight", "gguf": "ffn_gate.weight", "shape": "FC"},
    "mlp.fc1.weight": {"transformers": "mlp.up_proj.weight", "gguf": "ffn_up.weight", "shape": "FC"},
    "mlp.fc2.weight": {"transformers": "mlp.down_proj.weight", "gguf": "ffn_down.weight", "shape": "CF"},
    "ln_f.weight": {"transformers": "model.norm.weight", "gguf": "output_norm.weight", "shape": "C"},
    "lm_head.weight": {"transformers": "lm_head.weight", "gguf": "output.weight", "shape": "VC"},
}
_FIRST, *_BLOCK, _NORM, _HEAD = _WEIGHTS  # those of _BLOCK are in each block
_BLOCK_NAMES: dict[Form, str] = {"transformers": "model.layers.{}.", "gguf": "blk.{}."}
_ROTATED = ("q", "k", "attn.q_gain", "attn.k_gain")


@dataclass(frozen=True)
class Family:
    """Architecture of pretrained models."""

    name: str  # `model_type` of transformers, and GGUF's architecture
    model_class: str  # of transformers
    gains: bool  # whether q and k have an RMSNorm with gains
    halves: tuple[Form, ...]  # forms whose q and k rotate dimension i with i + D/2

    def model_config(self, config: Mapping[str, Any]) -> ModelConfig:
        """Return our configuration for transformers' config.json; raise a ValueError for what we cannot compute."""
        if what := _unsupported(config):
            raise ValueError(f"this model has {what}, which the portable block does not compute: take another model")
        given = {ours: config.get(theirs) for ours, theirs, _ in _SETTINGS if theirs}
        kv_heads, head_dim = given.pop("K"), given.pop("D")
        try:
            for ours, theirs, _ in _SETTINGS:
                if ours in given and given[ours] is None:
                    raise ValueError(f"{theirs} is missing")
            return ModelConfig.from_section(
                {
                    **given,
                    "dropout": 0.0,
                    "rope_theta": float(_rope(config).get("rope_theta") or config.get("rope_theta") or 10000.0),
                    "norm": "rms",
                    "bias": False,
                    "activation": "swiglu",
                    "kv_heads": None if kv_heads == given["H"] else kv_heads,
                    "head_dim": head_dim,
                    "qk_norm": self.gains,
                    "qk_gain": self.gains,
                    "tied": bool(config.get("tie_word_embeddings", False)),
                }
            )
        except (ValueError, TypeError) as error:
            raise ValueError(f"config.json describes no {self.name} model: {error}") from None

    def transformers_config(self, cfg: ModelConfig) -> dict[str, Any]:
        """Return transformers' config.json, without the ids of special tokens."""
        return {
            **{theirs: getattr(cfg, ours) for ours, theirs, _ in _SETTINGS if theirs},
            "architectures": [self.model_class],
            "model_type": self.name,
            "hidden_act": "silu",
            "rope_theta": cfg.rope_theta,  # before transformers 5
            "rope_parameters": {"rope_type": "default", "rope_theta": cfg.rope_theta},
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": cfg.tied,
            "torch_dtype": "float32",
        }

    def gguf_fields(self, cfg: ModelConfig) -> dict[str, int | float | bool]:
        """Return the model's fields of a GGUF file, without the architecture's prefix."""
        return {theirs: getattr(cfg, ours) for ours, _, theirs in _SETTINGS}

    def weights_from(self, tensors: _Weights, cfg: ModelConfig, form: Form) -> dict[str, torch.Tensor]:
        """Return our state dict; raise a ValueError for a missing, misshapen or unknown tensor."""
        ours, used = {}, {_WEIGHTS[_HEAD][form]}  # a tied head may be stored besides
        for block, part, name, shape in _layout(cfg, form):
            if name not in tensors:
                raise ValueError(
                    f"the weights lack {name}: the file is incomplete, or of another model than its config"
                )
            value = tensors[name]
            if tuple(value.shape) != shape:
                raise ValueError(f"{name} has the shape {tuple(value.shape)}, but its config asks for {shape}")
            used.add(name)
            rotated = form in self.halves and part in _ROTATED
            ours[block + part] = _as_pairs(value, D=cfg.D) if rotated else value
            if part == _BLOCK[-1]:
                ours[f"{block}attn.qkv.weight"] = torch.cat([ours.pop(block + each) for each in "qkv"])
        if cfg.tied:
            ours[_HEAD] = ours[_FIRST]
        # Older files store the frequencies of the rotation, which follow from theta.
        unknown = [name for name in tensors if name not in used and not name.endswith(".inv_freq")]
        if unknown:
            raise ValueError(
                f"the weights have {unknown[0]} ({len(unknown)} such), which this block does not compute with"
            )
        return ours

    def weights_to(self, state_dict: _Weights, cfg: ModelConfig, form: Form) -> dict[str, torch.Tensor]:
        """Return a state dict under the names of `form`, a tied head left out."""
        weights, theirs = dict(state_dict), {}
        for i in range(cfg.L):
            heads = weights[f"blocks.{i}.attn.qkv.weight"].split((cfg.H * cfg.D, cfg.K * cfg.D, cfg.K * cfg.D))
            weights |= {f"blocks.{i}.{part}": rows for part, rows in zip("qkv", heads, strict=True)}
        for block, part, name, _ in _layout(cfg, form):
            value = weights.get(block + part, torch.ones(cfg.D))  # the norm of q and k may have no gains
            rotated = form in self.halves and part in _ROTATED
            theirs[name] = as_halves(value, D=cfg.D) if rotated else value
        return theirs


LLAMA = Family("llama", "LlamaForCausalLM", gains=False, halves=("transformers",))  # also SmolLM2, TinyLlama and others
QWEN3 = Family("qwen3", "Qwen3ForCausalLM", gains=True, halves=("transformers", "gguf"))
FAMILIES = {family.name: family for family in (LLAMA, QWEN3)}


def family_of(config: Mapping[str, Any]) -> Family:
    """Return the family of a model with this config.json; raise a ValueError for another architecture."""
    name = config.get("model_type")
    if name not in FAMILIES:
        raise ValueError(f"{name or 'a model without model_type'} is not supported: take one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


def family_for(cfg: ModelConfig) -> Family | None:
    """Return the family that a model of this project can be exported as; None if it has no portable block."""
    portable = {"norm": "rms", "bias": False, "activation": "swiglu"}
    apart = {"norm_eps", "kv_heads", "head_dim", "qk_norm", "qk_gain", "tied", "zero_init"}
    options = {name: value for name, value in cfg.options.items() if name not in apart}
    if options != portable:
        return None
    return QWEN3 if cfg.qk_norm else LLAMA


def config_from_gguf(metadata: Mapping[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    """Return the config.json of a GGUF file with these fields and tensors; raise a ValueError if there is none."""
    name = metadata.get("general.architecture")
    family_of({"model_type": name})
    given = {key: metadata.get(f"{name}.{key}") for _, _, key in _SETTINGS}
    heads, C = given["attention.head_count"], given["embedding_length"]
    D = given["attention.key_length"] or (C // heads if C and heads else None)
    defaults = {
        "attention.head_count_kv": heads,
        **dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), D),
        "rope.freq_base": 10000.0,
        "vocab_size": len(metadata.get("tokenizer.ggml.tokens", ())),
    }
    for key, value in given.items():
        given[key] = defaults.get(key) if value is None else value
        if given[key] is None:
            raise ValueError(f"the GGUF file has no field {name}.{key}")
    if {given["attention.value_length"], given["rope.dimension_count"]} != {D}:
        raise ValueError("the GGUF file has heads whose keys, values and rotations differ in width: take another model")
    scaling = metadata.get(f"{name}.rope.scaling.type", "none")
    kind = "llama3" if "rope_freqs.weight" in tensors else "default" if scaling == "none" else scaling
    # The decimal number that was rounded to this float32: 1e-5 for 9.999999747e-06.
    eps = float(f"{given['attention.layer_norm_rms_epsilon']:.7g}")
    return {
        **{theirs: given[key] for _, theirs, key in _SETTINGS if theirs},
        "model_type": name,
        "rms_norm_eps": eps,
        "rope_parameters": {"rope_type": kind, "rope_theta": given["rope.freq_base"]},
        "tie_word_embeddings": _WEIGHTS[_HEAD]["gguf"] not in tensors,
    }


def _layout(cfg: ModelConfig, form: Form) -> Iterator[tuple[str, str, str, tuple[int, ...]]]:
    """Yield the weights in order: our prefix of the block, our name in it, the name in `form`, and the shape."""
    sizes = {"V": cfg.V, "C": cfg.C, "Q": cfg.H * cfg.D, "K": cfg.K * cfg.D, "D": cfg.D, "F": cfg.d_ff}
    parts = [part for part in _BLOCK if cfg.qk_norm or not part.endswith("_gain")]
    blocks = [(f"blocks.{i}.", _BLOCK_NAMES[form].format(i), part) for i in range(cfg.L) for part in parts]
    places = [("", "", _FIRST), *blocks, ("", "", _NORM), ("", "", _HEAD)]
    for ours, theirs, part in places[:-1] if cfg.tied else places:
        names = _WEIGHTS[part]
        yield ours, part, theirs + names[form], tuple(sizes[symbol] for symbol in names["shape"])


def _as_pairs(rows: torch.Tensor, *, D: int) -> torch.Tensor:
    """Reorder rows (heads * D, ...) so that each i and i + D/2 of a head become the neighbours 2i and 2i + 1."""
    return rows.unflatten(0, (-1, 2, D // 2)).transpose(1, 2).flatten(0, 2)


def as_halves(rows: torch.Tensor, *, D: int) -> torch.Tensor:
    """Undo `_as_pairs`."""
    return rows.unflatten(0, (-1, D // 2, 2)).transpose(1, 2).flatten(0, 2)


def _unsupported(config: Mapping[str, Any]) -> str | None:
    """Return the first setting of transformers' that the portable block does not compute."""
    rope, activation = _rope(config), config.get("hidden_act", "silu")
    scaling = rope.get("rope_type") or rope.get("type") or "default"
    partial_rotation = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor")
    settings = {
        f"rope scaling ({scaling})": scaling != "default",
        "a partial rotation (partial_rotary_factor)": partial_rotation not in (None, 1.0),
        "sliding-window attention": config.get("use_sliding_window")
        or set(config.get("layer_types") or ()) - {"full_attention"},
        **{f"biases ({key})": config.get(key) for key in ("attention_bias", "mlp_bias")},
        f"the activation {activation}": activation != "silu",
        "quantized weights (quantization_config)": config.get("quantization_config"),
    }
    return next((name for name, given in settings.items() if given), None)


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}
