"""Export of a model: weights as safetensors, configuration, tokenizer, and a card that says what it is made of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from niels_gpt.config import to_dict
from niels_gpt.files.atomic import write_json
from niels_gpt.report.scores import HEAD, score_rows
from niels_gpt.talk.talker import Talker
from niels_gpt.tokenizer.folder import tokenizer_file


def export_model(talker: Talker, folder: Path, *, tokenizer: Path, card: str) -> None:
    """model.safetensors, config.json, the tokenizer's file and README.md: what `open_talker` opens again."""
    folder.mkdir(parents=True)
    weights = talker.model.state_dict()
    if talker.model.cfg.tied:
        del weights["lm_head.weight"]  # it is the embedding
    _save_weights(folder, weights)
    write_json(folder / "config.json", {**to_dict(talker.model.cfg), "renderer": talker.renderer})
    file = tokenizer_file(tokenizer)
    shutil.copy(file, folder / file.name)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _save_weights(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    file = folder / "model.safetensors"
    try:
        save_file({name: value.contiguous() for name, value in weights.items()}, file, metadata={"format": "pt"})
    except SafetensorError as error:  # the writer's own, which hides the errno of a full disk
        raise OSError(f"{file} could not be written (is the disk full?): {error}") from error


def model_card(
    talker: Talker, *, mix: dict[str, Any], chat_mix: dict[str, Any], params: dict[str, Any], metrics: dict[str, Any]
) -> str:
    """Names, numbers and hashes; no text that the model was trained on."""
    cfg = talker.model.cfg
    size = f"T={cfg.T}, C={cfg.C}, L={cfg.L}, H={cfg.H}, d_ff={cfg.d_ff}, V={cfg.V}"
    lines = [
        f"# {talker.name}",
        "",
        f"A GPT of {talker.model.parameter_count():,} parameters ({size}), trained by niels_gpt.",
        f"Chats are put to it as {'tokens of their own' if talker.renderer == 'chat_tokens' else 'a text transcript'}.",
        "",
        "## Trained on",
        "",
        "| source | weight in the mix | training tokens | files | sha256 |",
        "|---|---|---|---|---|",
    ]
    for name, source in mix["sources"].items():
        hashes = " ".join(f"`{part['sha256']}`" for part in source["train"]["parts"])
        count, tokens = len(source["train"]["parts"]), source["train"]["tokens"]
        lines.append(f"| {name} | {params['p_train'].get(name, 0)} | {tokens:,} | {count} | {hashes} |")
    if talker.renderer == "chat_tokens":
        for name, source in chat_mix["sources"].items():
            hashes = " ".join(f"`{file['sha256']}`" for file in source["files"])
            lines.append(f"| {name} (chats) | {params['p_sft'].get(name, 0)} | | {len(source['files'])} | {hashes} |")
    scores = [f"| {' | '.join(row[:4])} |" for row in (HEAD, *score_rows(metrics))]
    lines += ["", "## Scores on held-out text", "", scores[0], "|---|---|---|---|", *scores[1:]]
    shown = {key: params[key] for key in ("model", "tokenizer", "p_train", "p_sft", "train", "sft")}
    lines += ["", "## Parameters", "", "```json", json.dumps(shown, indent=2), "```", ""]
    return "\n".join(lines)


def export_transformers(talker: Talker, folder: Path, *, card: str) -> None:
    """The same model as a GPT-NeoX, which `transformers` loads: its blocks are these, differently written down.

    There queries, keys and values of a head lie together, and a rotation turns the two halves of a head against each
    other where this project turns neighbours; so rows of the weight change places.
    """
    cfg, source = talker.model.cfg, talker.model.state_dict()
    if cfg.options:
        raise ValueError(
            f"GPT-NeoX has no {', '.join(f'model.{name}' for name in cfg.options)} as this model has: export it "
            "without --transformers, or train one whose model section is that of preset v1"
        )
    special = talker.tokenizer.special_token_ids()
    folder.mkdir(parents=True)
    write_json(
        folder / "config.json",
        {
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
            "layer_norm_eps": 1e-5,
            "use_parallel_residual": False,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
            "bos_token_id": special["eot"],
            "eos_token_id": special["eot"],
        },
    )
    weights = {
        "gpt_neox.embed_in.weight": source["tok_emb.weight"],
        "embed_out.weight": source["tok_emb.weight"].clone(),
    }
    for part in ("weight", "bias"):
        weights[f"gpt_neox.final_layer_norm.{part}"] = source[f"ln_f.{part}"]
        for i in range(cfg.L):
            ours, theirs = f"blocks.{i}", f"gpt_neox.layers.{i}"
            weights |= {
                f"{theirs}.input_layernorm.{part}": source[f"{ours}.ln1.{part}"],
                f"{theirs}.post_attention_layernorm.{part}": source[f"{ours}.ln2.{part}"],
                f"{theirs}.attention.query_key_value.{part}": _rearranged(
                    source[f"{ours}.attn.qkv.{part}"], H=cfg.H, D=cfg.D
                ),
                f"{theirs}.attention.dense.{part}": source[f"{ours}.attn.proj.{part}"],
                f"{theirs}.mlp.dense_h_to_4h.{part}": source[f"{ours}.mlp.fc1.{part}"],
                f"{theirs}.mlp.dense_4h_to_h.{part}": source[f"{ours}.mlp.fc2.{part}"],
            }
    _save_weights(folder, weights)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _rearranged(qkv: torch.Tensor, *, H: int, D: int) -> torch.Tensor:
    """Rows (3, H, D) -> (H, 3, D), with the even places of a query's or key's head before the odd ones."""
    q, k, v = qkv.unflatten(0, (3, H, D))
    order = torch.cat((torch.arange(0, D, 2), torch.arange(1, D, 2)))
    return torch.stack((q[:, order], k[:, order], v), dim=1).flatten(0, 2)
