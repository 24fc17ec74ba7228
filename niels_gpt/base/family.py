"""Name maps between this project's portable block and the Llama-shaped models of transformers and GGUF.

Rotary embeddings pair up dimensions of a head in one of two orders. This project and GGUF's `llama` pair neighbours
(2i, 2i + 1); transformers and GGUF's `qwen3` pair the halves (i, i + D/2). Where the orders differ, the rows of q and k
and their gains are permuted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from niels_gpt.config import ModelConfig

_Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Naming:
    """Names of the weights in a file format."""

    embedding: str
    norm: str
    head: str
    block: str  # prefix of block {i}
    parts: Mapping[str, str]  # our part of a block -> theirs; q, k and v, which we store together, are apart
    halves: bool  # whether q and k rotate dimension i with i + D/2


TRANSFORMERS = Naming(
    embedding="model.embed_tokens.weight",
    norm="model.norm.weight",
    head="lm_head.weight",
    block="model.layers.{i}.",
    parts={
        "ln1.weight": "input_layernorm.weight",
        "q": "self_attn.q_proj.weight",
        "k": "self_attn.k_proj.weight",
        "v": "self_attn.v_proj.weight",
        "attn.q_gain": "self_attn.q_norm.weight",
        "attn.k_gain": "self_attn.k_norm.weight",
        "attn.proj.weight": "self_attn.o_proj.weight",
        "ln2.weight": "post_attention_layernorm.weight",
        "mlp.gate.weight": "mlp.gate_proj.weight",
        "mlp.fc1.weight": "mlp.up_proj.weight",
        "mlp.fc2.weight": "mlp.down_proj.weight",
    },
    halves=True,
)


def gguf_naming(*, halves: bool) -> Naming:
    """Return GGUF's names; the order of rotation depends on the architecture."""
    return Naming(
        embedding="token_embd.weight",
        norm="output_norm.weight",
        head="output.weight",
        block="blk.{i}.",
        parts={
            "ln1.weight": "attn_norm.weight",
            "q": "attn_q.weight",
            "k": "attn_k.weight",
            "v": "attn_v.weight",
            "attn.q_gain": "attn_q_norm.weight",
            "attn.k_gain": "attn_k_norm.weight",
            "attn.proj.weight": "attn_output.weight",
            "ln2.weight": "ffn_norm.weight",
            "mlp.gate.weight": "ffn_gate.weight",
            "mlp.fc1.weight": "ffn_up.weight",
            "mlp.fc2.weight": "ffn_down.weight",
        },
        halves=halves,
    )


@dataclass(frozen=True)
class Family:
    """Architecture of pretrained models: its configuration and the names of its weights."""

    name: str  # `model_type` of transformers, and GGUF's architecture
    model_class: str  # of transformers
    gains: bool  # whether q and k have an RMSNorm with gains
    gguf: Naming
    transformers: Naming = TRANSFORMERS

    @property
    def gguf_name(self) -> str:
        return self.name

    def model_config(self, config: Mapping[str, Any], *, T: int | None = None) -> ModelConfig:
        """Return our configuration for transformers' config.json, of context `T` (default: the model's own).

        Raise a ValueError for what the portable block does not compute.
        """
        _refuse_unsupported(config)
        try:
            heads = _setting(config, "num_attention_heads")
            return ModelConfig.from_section(
                {
                    "V": _setting(config, "vocab_size"),
                    "T": _setting(config, "max_position_embeddings") if T is None else T,
                    "C": _setting(config, "hidden_size"),
                    "L": _setting(config, "num_hidden_layers"),
                    "H": heads,
                    "d_ff": _setting(config, "intermediate_size"),
                    "dropout": 0.0,
                    "rope_theta": float(_rope(config).get("rope_theta") or config.get("rope_theta") or 10000.0),
                    "norm": "rms",
                    "norm_eps": _setting(config, "rms_norm_eps"),
                    "bias": False,
                    "activation": "swiglu",
                    "kv_heads": _different(config.get("num_key_value_heads"), heads),
                    "head_dim": config.get("head_dim"),
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
            "architectures": [self.model_class],
            "model_type": self.name,
            "vocab_size": cfg.V,
            "max_position_embeddings": cfg.T,
            "hidden_size": cfg.C,
            "num_hidden_layers": cfg.L,
            "num_attention_heads": cfg.H,
            "num_key_value_heads": cfg.K,
            "head_dim": cfg.D,
            "intermediate_size": cfg.d_ff,
            "hidden_act": "silu",
            "rms_norm_eps": cfg.norm_eps,
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
        return {
            "context_length": cfg.T,
            "embedding_length": cfg.C,
            "block_count": cfg.L,
            "feed_forward_length": cfg.d_ff,
            "attention.head_count": cfg.H,
            "attention.head_count_kv": cfg.K,
            "attention.key_length": cfg.D,
            "attention.value_length": cfg.D,
            "rope.dimension_count": cfg.D,
            "rope.freq_base": cfg.rope_theta,
            "attention.layer_norm_rms_epsilon": cfg.norm_eps,
            "vocab_size": cfg.V,
        }

    def weights_from_transformers(self, tensors: _Weights, cfg: ModelConfig) -> dict[str, torch.Tensor]:
        """Return our state dict; raise a ValueError for a missing, misshapen or unknown tensor."""
        return _from_theirs(tensors, cfg, self.transformers)

    def weights_to_transformers(self, state_dict: _Weights, cfg: ModelConfig) -> dict[str, torch.Tensor]:
        """Return a state dict under transformers' names, a tied head left out."""
        return _to_theirs(state_dict, cfg, self.transformers)

    def weights_from_gguf(self, tensors: _Weights, cfg: ModelConfig) -> dict[str, torch.Tensor]:
        """Return our state dict; raise a ValueError for a missing, misshapen or unknown tensor."""
        return _from_theirs(tensors, cfg, self.gguf)

    def weights_to_gguf(self, state_dict: _Weights, cfg: ModelConfig) -> dict[str, torch.Tensor]:
        """Return a state dict under GGUF's names, a tied head left out."""
        return _to_theirs(state_dict, cfg, self.gguf)


def _from_theirs(tensors: _Weights, cfg: ModelConfig, naming: Naming) -> dict[str, torch.Tensor]:
    used: set[str] = set()

    def take(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in tensors:
            raise ValueError(f"the weights lack {name}: the file is incomplete, or of another model than its config")
        value = tensors[name]
        if tuple(value.shape) != shape:
            raise ValueError(f"{name} has the shape {tuple(value.shape)}, but its config asks for {shape}")
        used.add(name)
        return value

    ours = {"tok_emb.weight": take(naming.embedding, (cfg.V, cfg.C))}
    for i in range(cfg.L):
        prefix, qkv = naming.block.format(i=i), []
        for part, shape in _shapes(cfg).items():
            value = take(prefix + naming.parts[part], shape)
            if naming.halves and part in _ROTATED:
                value = _as_pairs(value, D=cfg.D)
            if part in ("q", "k", "v"):
                qkv.append(value)
            else:
                ours[f"blocks.{i}.{part}"] = value
        ours[f"blocks.{i}.attn.qkv.weight"] = torch.cat(qkv)
    ours["ln_f.weight"] = take(naming.norm, (cfg.C,))
    ours["lm_head.weight"] = ours["tok_emb.weight"] if cfg.tied else take(naming.head, (cfg.V, cfg.C))
    # A tied head may be stored besides, and older files store the frequencies of the rotation, which follow from theta.
    unknown = [name for name in tensors if name not in used | {naming.head} and not name.endswith(".inv_freq")]
    if unknown:
        raise ValueError(f"the weights have {unknown[0]} ({len(unknown)} such), which this block does not compute with")
    return ours


def _to_theirs(state_dict: _Weights, cfg: ModelConfig, naming: Naming) -> dict[str, torch.Tensor]:
    theirs = {naming.embedding: state_dict["tok_emb.weight"]}
    for i in range(cfg.L):
        prefix, ours = naming.block.format(i=i), f"blocks.{i}."
        heads = state_dict[f"{ours}attn.qkv.weight"].split((cfg.H * cfg.D, cfg.K * cfg.D, cfg.K * cfg.D))
        qkv = dict(zip("qkv", heads, strict=True))
        for part in _shapes(cfg):
            value = (
                qkv[part] if part in qkv else state_dict.get(ours + part, torch.ones(cfg.D))
            )  # qk_norm without gains
            theirs[prefix + naming.parts[part]] = (
                _as_halves(value, D=cfg.D) if naming.halves and part in _ROTATED else value
            )
    theirs[naming.norm] = state_dict["ln_f.weight"]
    if not cfg.tied:
        theirs[naming.head] = state_dict["lm_head.weight"]
    return theirs


_ROTATED = ("q", "k", "attn.q_gain", "attn.k_gain")


def _shapes(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a block's weights."""
    C, q, kv = cfg.C, cfg.H * cfg.D, cfg.K * cfg.D
    gains = {"attn.q_gain": (cfg.D,), "attn.k_gain": (cfg.D,)} if cfg.qk_norm else {}
    return {
        "ln1.weight": (C,),
        "q": (q, C),
        "k": (kv, C),
        "v": (kv, C),
        **gains,
        "attn.proj.weight": (C, q),
        "ln2.weight": (C,),
        "mlp.gate.weight": (cfg.d_ff, C),
        "mlp.fc1.weight": (cfg.d_ff, C),
        "mlp.fc2.weight": (C, cfg.d_ff),
    }


def _as_pairs(rows: torch.Tensor, *, D: int) -> torch.Tensor:
    """Reorder rows (heads * D, ...) so that each i and i + D/2 of a head become the neighbours 2i and 2i + 1."""
    return rows.unflatten(0, (-1, 2, D // 2)).transpose(1, 2).flatten(0, 2)


def _as_halves(rows: torch.Tensor, *, D: int) -> torch.Tensor:
    """Undo `_as_pairs`."""
    return rows.unflatten(0, (-1, D // 2, 2)).transpose(1, 2).flatten(0, 2)


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    for what in _unsupported(config):
        raise ValueError(f"this model has {what}, which the portable block does not compute: take another model")


def _unsupported(config: Mapping[str, Any]) -> Iterator[str]:
    kind = _rope(config).get("rope_type") or _rope(config).get("type") or "default"
    if kind != "default":
        yield f"rope scaling ({kind})"
    if (_rope(config).get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0) != 1.0:
        yield "a partial rotation (partial_rotary_factor)"
    if config.get("use_sliding_window") or set(config.get("layer_types") or ()) - {"full_attention"}:
        yield "sliding-window attention"
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            yield f"biases ({key})"
    if config.get("hidden_act", "silu") != "silu":
        yield f"the activation {config['hidden_act']}"
    if config.get("quantization_config"):
        yield "quantized weights (quantization_config)"


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _setting(config: Mapping[str, Any], key: str) -> Any:
    if config.get(key) is None:
        raise ValueError(f"{key} is missing")
    return config[key]


def _different(value: Any, default: Any) -> Any:
    return None if value == default else value
