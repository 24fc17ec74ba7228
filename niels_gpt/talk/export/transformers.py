"""Export for the transformers library: GPT-NeoX weights, a tokenizer.json of the same ids, the chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from niels_gpt.files.atomic import write_json
from niels_gpt.files.checksums import write_sums
from niels_gpt.talk.export.chat import jinja_template
from niels_gpt.talk.export.neox import LAYER_NORM_EPS, Naming, check_neox, neox_weights
from niels_gpt.talk.export.plain import save_weights
from niels_gpt.talk.export.vocabulary import Piece, byte_alphabet, byte_score, pieces_of
from niels_gpt.talk.talker import SAMPLING, Talker
from niels_gpt.tokenizer.sentencepiece import PARTS

_NAMING = Naming(
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
    join_heads=lambda heads: heads.transpose(0, 1),  # queries, keys and values of a head lie together
)
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_NEVER = -1e6  # the score of a piece that is in the list for its id alone


def export_transformers(talker: Talker, folder: Path, *, card: str) -> None:
    """What AutoModelForCausalLM and AutoTokenizer load, without code of ours."""
    cfg = talker.model.cfg
    check_neox(cfg, option="--transformers")
    eot, pieces = talker.tokenizer.special_token_ids()["eot"], pieces_of(talker.tokenizer)
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
            "layer_norm_eps": LAYER_NORM_EPS,
            "use_parallel_residual": False,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
            "bos_token_id": eot,
            "eos_token_id": eot,
        },
    )
    write_json(
        folder / "generation_config.json",
        {
            "bos_token_id": eot,
            "eos_token_id": eot,
            "pad_token_id": eot,
            "do_sample": True,
            "temperature": SAMPLING.temperature,
            "top_k": SAMPLING.top_k,
        },
    )
    weights = neox_weights(talker.model, _NAMING)
    weights["embed_out.weight"] = weights["embed_out.weight"].clone()  # safetensors holds no weight twice
    save_weights(folder, weights)
    write_json(folder / "tokenizer.json", tokenizer_json(pieces))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": pieces[eot].name,
            "pad_token": pieces[eot].name,
            "model_max_length": cfg.T,
            "clean_up_tokenization_spaces": False,
        },
    )
    (folder / "chat_template.jinja").write_text(jinja_template(talker.renderer), encoding="utf-8")
    (folder / "README.md").write_text(card, encoding="utf-8")
    write_sums(folder)


def tokenizer_json(pieces: list[Piece]) -> dict[str, Any]:
    """The `tokenizers` library's form of a tokenizer: a Unigram model over bytes.

    Text becomes its bytes, in GPT-2's alphabet, and pieces are written in it. A byte is then a piece like others, and
    neither a real "▁" nor what reads "<0x0A>" or "<unk>" in a text is taken for more than it is, as in the usual form
    of a SentencePiece model there; and bytes that are no text come back as Python decodes them.
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": id,
                "content": piece.name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for id, piece in enumerate(pieces)
            if piece.kind == "chat"
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": PARTS.pattern}, "behavior": "Isolated", "invert": False},
                _BYTE_LEVEL,
            ],
        },
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"Regex": "^<unk>$"}, "content": ""},
                {"type": "ByteFallback"},
                _BYTE_LEVEL,
            ],
        },
        "model": {
            "type": "Unigram",
            "unk_id": next((id for id, piece in enumerate(pieces) if piece.kind == "unknown"), None),
            "vocab": _vocabulary(pieces),
            "byte_fallback": False,
        },
    }


def _vocabulary(pieces: list[Piece]) -> list[tuple[str, float]]:
    """(what the piece looks like in bytes, score) by id. A byte that is also a piece of one character never comes out
    of a text, and keeps the name by which it is decoded."""
    alphabet, for_bytes = byte_alphabet(), byte_score(pieces)
    taken = {piece.bytes for piece in pieces if piece.kind == "text"}
    named: list[tuple[str, float]] = []
    for piece in pieces:
        spelt = "".join(alphabet[byte] for byte in piece.bytes)
        if piece.kind == "text":
            named.append((spelt, piece.score))
        elif piece.kind == "byte" and piece.bytes not in taken:
            named.append((spelt, for_bytes))
        else:
            named.append((piece.name, _NEVER))
    return named
