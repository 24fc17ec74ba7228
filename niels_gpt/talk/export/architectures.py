"""Architectures of other libraries that compute the same function as a model of this project.

A model with the portable block is a Llama or a Qwen3. One with the default block is a GPT-NeoX, in another layout of
the weights. Other options exist in no architecture that transformers or llama.cpp has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from niels_gpt.base.families import family_for
from niels_gpt.config import ModelConfig

_Weights = Mapping[str, torch.Tensor]


class Architecture(Protocol):
    """Configuration and names of the weights of a model in transformers and in GGUF."""

    @property
    def gguf_name(self) -> str: ...

    def transformers_config(self, cfg: ModelConfig) -> dict[str, Any]:
        """Return config.json without the ids of special tokens."""
        ...

    def gguf_fields(self, cfg: ModelConfig) -> dict[str, int | float | bool]:
        """Return the model's fields of a GGUF file, without the architecture's prefix."""
        ...

    def weights_to_transformers(self, state_dict: _Weights, cfg: ModelConfig) -> dict[str, torch.Tensor]: ...
    def weights_to_gguf(self, state_dict: _Weights, cfg: ModelConfig) -> dict[str, torch.Tensor]: ...


def architecture_of(cfg: ModelConfig, *, option: str) -> Architecture:
    """Return the architecture to export a model as; raise a ValueError, naming the CLI `option`, if there is none."""
    family = family_for(cfg)
    if family is not None:
        return family
    if cfg.options:
        raise ValueError(
            f"GPT-NeoX does not support {', '.join(f'model.{name}' for name in cfg.options)}: export without {option}, "
            "or train with the model section of preset v1 or v3"
        )
    return NeoX()


# Conversion to GPT-NeoX, whose blocks compute the same function with a different layout of weights.
#
# Its RoPE rotates dimension i of a head with i + D/2, ours rotates neighbours (2i, 2i + 1), so the rows of the Q and K
# weights are permuted.


@dataclass(frozen=True)
class _Naming:
    top: Mapping[str, str]  # our module -> theirs
    block: str  # name of block {i}
    parts: Mapping[str, str]  # our module in a block -> theirs
    join_heads: Callable[[torch.Tensor], torch.Tensor]  # reorders (3, H, D, ...) to their row order


_TRANSFORMERS = _Naming(
    top={"tok_emb": "gpt_neox.embed_in", "lm_head": "embed_out", "ln_f": "gpt_neox.final_layer_norm"},
    block="gpt_neox.layers.{i}",
    parts={
        "ln1": "input_layernorm",
        "ln2": "post_attention_layernorm",
        "attn.qkv": "attention.query_key_value",
        "attn.proj": "attention.dense",
        "mlp.fc1": "mlp.dense_h_to_4h",
        "mlp.fc2": "mlp.dense_4h_to_h",
    },
    join_heads=lambda heads: heads.transpose(0, 1),  # Q, K and V of a head are contiguous
)
_GGUF = _Naming(
    top={"tok_emb": "token_embd", "lm_head": "output", "ln_f": "output_norm"},
    block="blk.{i}",
    parts={
        "ln1": "attn_norm",
        "ln2": "ffn_norm",
        "attn.qkv": "attn_qkv",
        "attn.proj": "attn_output",
        "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down",
    },
    join_heads=lambda heads: heads,  # all Q rows, then all K, then all V
)


class NeoX:
    """GPT-NeoX, as which a model with the default block is exported. The tied head is listed besides the embedding."""

    gguf_name = "gptneox"

    def transformers_config(self, cfg: ModelConfig) -> dict[str, Any]:
        return {
            "architectures": ["GPTNeoXForCausalLM"],
            "model_type": "gpt_neox",
            "vocab_size": cfg.V,
            "max_position_embeddings": cfg.T,
            "hidden_size": cfg.C,
            "num_hidden_layers": cfg.L,
            "num_attention_heads": cfg.H,
            "intermediate_size": cfg.d_ff,
            "hidden_act": "gelu",
            "rotary_pct": 1.0,
            "rotary_emb_base": cfg.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": cfg.rope_theta, "partial_rotary_factor": 1.0},
            "layer_norm_eps": cfg.norm_eps,
            "use_parallel_residual": False,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
        }

    def gguf_fields(self, cfg: ModelConfig) -> dict[str, int | float | bool]:
        return {
            "context_length": cfg.T,
            "embedding_length": cfg.C,
            "block_count": cfg.L,
            "feed_forward_length": cfg.d_ff,
            "attention.head_count": cfg.H,
            "rope.dimension_count": cfg.D,
            "rope.freq_base": cfg.rope_theta,
            "attention.layer_norm_epsilon": cfg.norm_eps,
            "use_parallel_residual": False,
            "vocab_size": cfg.V,
        }

    def weights_to_transformers(self, state_dict: _Weights, cfg: ModelConfig) -> dict[str, torch.Tensor]:
        return _neox_weights(state_dict, cfg, _TRANSFORMERS)

    def weights_to_gguf(self, state_dict: _Weights, cfg: ModelConfig) -> dict[str, torch.Tensor]:
        return _neox_weights(state_dict, cfg, _GGUF)


def _neox_weights(state_dict: _Weights, cfg: ModelConfig, naming: _Naming) -> dict[str, torch.Tensor]:
    weights = {}
    for name, value in state_dict.items():
        module, _, part = name.rpartition(".")
        if module.startswith("blocks."):
            _, i, module = module.split(".", 2)
            theirs = f"{naming.block.format(i=i)}.{naming.parts[module]}"
        else:
            theirs = naming.top[module]
        if module == "attn.qkv":
            value = naming.join_heads(_halved(value, cfg=cfg)).flatten(0, 2)  # noqa: PLW2901
        weights[f"{theirs}.{part}"] = value
    return weights


def _halved(qkv: torch.Tensor, *, cfg: ModelConfig) -> torch.Tensor:
    """Reshape QKV weights to `(3, H, D, ...)`, with the even dimensions of each Q and K head before the odd ones."""
    q, k, v = qkv.unflatten(0, (3, cfg.H, cfg.D))
    order = torch.cat((torch.arange(0, cfg.D, 2), torch.arange(1, cfg.D, 2)))
    return torch.stack((q[:, order], k[:, order], v))
