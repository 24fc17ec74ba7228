"""Families of pretrained models that can be imported, and the family that a model of this project is exported as."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from niels_gpt.base.family import Family
from niels_gpt.base.llama import LLAMA
from niels_gpt.base.qwen3 import QWEN3
from niels_gpt.config import ModelConfig

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
    """Return the config.json of a GGUF file with these fields and names of tensors.

    Raise a ValueError for another architecture, and for what config.json cannot say.
    """
    name = metadata.get("general.architecture")
    family = family_of({"model_type": name})

    def field(key: str, default: Any = None) -> Any:
        value = metadata.get(f"{name}.{key}", default)
        if value is None:
            raise ValueError(f"the GGUF file has no field {name}.{key}")
        return value

    heads, C = field("attention.head_count"), field("embedding_length")
    D = field("attention.key_length", C // heads)
    if field("attention.value_length", D) != D or field("rope.dimension_count", D) != D:
        raise ValueError("the GGUF file has heads whose keys, values and rotations differ in width: take another model")
    V = metadata.get(f"{name}.vocab_size") or len(metadata.get("tokenizer.ggml.tokens", ()))
    scaling = metadata.get(f"{name}.rope.scaling.type", "none")
    scaled = scaling != "none" or "rope_freqs.weight" in tensors
    return {
        "model_type": name,
        "vocab_size": V,
        "max_position_embeddings": field("context_length"),
        "hidden_size": C,
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field("attention.head_count_kv", heads),
        "head_dim": D,
        "intermediate_size": field("feed_forward_length"),
        "rms_norm_eps": _shortest(field("attention.layer_norm_rms_epsilon")),
        "rope_parameters": {
            "rope_type": "llama3" if "rope_freqs.weight" in tensors else scaling if scaled else "default",
            "rope_theta": field("rope.freq_base", 10000.0),
        },
        "tie_word_embeddings": family.gguf.head not in tensors,
    }


def _shortest(value: float) -> float:
    """Return the decimal number that was rounded to this float32: 1e-5 for 9.999999747e-06."""
    return float(f"{value:.7g}")
