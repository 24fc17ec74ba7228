"""Exports as folders: in the project's own format, and for the transformers library (GPT-NeoX)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from niels_gpt.chat_format import PROMPT, ROLES
from niels_gpt.config import ModelConfig, Renderer, to_dict
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import write_sums
from niels_gpt.model.gpt import GPT
from niels_gpt.talk.talker import SAMPLING, Talker
from niels_gpt.tokenizer.tokenizers import PARTS, ByteTokenizer, SentencePieceTokenizer, tokenizer_file
from niels_gpt.tokenizer.vocabulary import BYTE_VALUES, SPECIAL_TOKENS, Tokenizer


def export_model(talker: Talker, folder: Path, *, tokenizer: Path, card: str) -> None:
    """Write model.safetensors, config.json, the tokenizer's file, README.md and SHA256SUMS."""
    folder.mkdir(parents=True)
    weights = talker.model.state_dict()
    if talker.model.cfg.tied:
        del weights["lm_head.weight"]  # tied to the embedding
    save_weights(folder, weights)
    write_json(folder / "config.json", {**to_dict(talker.model.cfg), "renderer": talker.renderer})
    file = tokenizer_file(tokenizer)
    shutil.copy(file, folder / file.name)
    (folder / "README.md").write_text(card, encoding="utf-8")
    write_sums(folder)


def save_weights(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write model.safetensors."""
    file = folder / "model.safetensors"
    try:
        save_file({name: value.contiguous() for name, value in weights.items()}, file, metadata={"format": "pt"})
    except SafetensorError as error:  # hides the errno of a full disk
        raise OSError(f"{file} could not be written (is the disk full?): {error}") from error


@dataclass(frozen=True)
class VocabularyEntry:
    """Vocabulary entry.

    `text` entries are chosen by a Unigram model, where `score` is the log probability; `byte` entries encode what no
    `text` entry covers. The other kinds have no bytes, and no text encodes to them.
    """

    kind: Literal["text", "byte", "chat", "unknown"]
    name: str
    bytes: bytes
    score: float = 0.0


def pieces_of(tokenizer: Tokenizer) -> list[VocabularyEntry]:
    """Return the vocabulary entries in order of their ids."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return _trained_pieces(tokenizer)
    assert isinstance(tokenizer, ByteTokenizer)
    spelt = [VocabularyEntry("byte", f"<0x{byte:02X}>", bytes([byte])) for byte in range(BYTE_VALUES)]
    return spelt + [VocabularyEntry("chat", name, b"") for name in SPECIAL_TOKENS]


def _trained_pieces(tokenizer: SentencePieceTokenizer) -> list[VocabularyEntry]:
    import sentencepiece

    model: Any = sentencepiece.SentencePieceProcessor(model_file=tokenizer.model_path)
    kinds: list[tuple[Literal["byte", "chat", "unknown"], Any]] = [
        ("byte", model.IsByte),
        ("chat", model.IsControl),
        ("unknown", model.IsUnknown),
    ]
    return [
        VocabularyEntry(
            next((kind for kind, is_one in kinds if is_one(i)), "text"),
            model.IdToPiece(i),
            tokenizer.piece(i),
            model.GetScore(i),
        )
        for i in range(tokenizer.vocab_size)
    ]


def byte_score(pieces: list[VocabularyEntry]) -> float:
    """Return a score for bytes in a Unigram model where bytes compete with text entries.

    It is 10 below the lowest text score, so that a byte is used only where no entry fits. SentencePiece uses the same
    penalty for unknown characters.
    """
    return min((piece.score for piece in pieces if piece.kind == "text"), default=0.0) - 10.0


def byte_alphabet() -> list[str]:
    """Return GPT-2's printable character for each byte, in which byte-level vocabularies are written."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(BYTE_VALUES, 2 * BYTE_VALUES))
    return [chr(byte if byte in visible else next(others)) for byte in range(BYTE_VALUES)]


# Chat format as a Jinja template, as transformers and llama.cpp use it.
#
# They render a chat to text and then encode the text, chat tokens included. `Talker.prompt` encodes what
# people wrote as plain text, even the name of a chat token. A template cannot, and rejects a message with such a name.

_CHECKS = """\
{%- for message in messages -%}
  {%- if message['role'] not in ROLES or message['content'] is not string -%}
    {{- raise_exception('a message needs a role of ROLES and a string content') -}}
  {%- endif -%}
  {%- for name in SPECIAL_TOKENS -%}
    {%- if name in message['content'] -%}
      {{- raise_exception('a message contains the name of a chat token, which would be parsed as one: remove it') -}}
    {%- endif -%}
  {%- endfor -%}
{%- endfor -%}
"""
_CHAT_TOKENS = """\
{%- set tags = TAGS -%}
{%- for message in messages -%}
  {{- tags[message['role']] + message['content'] + 'EOT' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- tags['assistant'] -}}
{%- endif -%}
"""
# An empty last turn of the assistant is the generation prompt itself: its tag must not be written twice.
_TRANSCRIPT = """\
{%- for message in messages -%}
  {%- if not (loop.last and message['role'] == 'assistant' and message['content'] == '' and add_generation_prompt) -%}
    {{- message['role'] + ': ' + message['content'] + '\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- 'PROMPT' -}}
{%- endif -%}
"""


def jinja_template(renderer: Renderer) -> str:
    """Return the chat template; with `add_generation_prompt` it renders what `Talker.prompt` encodes."""
    *roles, eot = SPECIAL_TOKENS
    template = _CHECKS + (_CHAT_TOKENS if renderer == "chat_tokens" else _TRANSCRIPT)
    for word, value in {
        "a role of ROLES": f"a role of {', '.join(ROLES)}",
        "ROLES": str(list(ROLES)),
        "SPECIAL_TOKENS": str(list(SPECIAL_TOKENS)),
        "TAGS": str(dict(zip(ROLES, roles, strict=True))),
        "EOT": eot,
        "PROMPT": PROMPT,
    }.items():
        template = template.replace(word, value)
    return template


# Conversion to GPT-NeoX, whose blocks compute the same function with a different layout of weights.
#
# Its RoPE rotates dimension i of a head with i + D/2, ours rotates neighbours (2i, 2i + 1), so the rows of the Q and K
# weights are permuted.

LAYER_NORM_EPS = 1e-5  # torch's default, which the model uses


@dataclass(frozen=True)
class Naming:
    """Names of the weights in another implementation of GPT-NeoX."""

    top: Mapping[str, str]  # our module -> theirs
    block: str  # name of block {i}
    parts: Mapping[str, str]  # our module in a block -> theirs
    join_heads: Callable[[torch.Tensor], torch.Tensor]  # reorders (3, H, D, ...) to their row order


def check_neox(cfg: ModelConfig, *, option: str) -> None:
    """Raise a ValueError if GPT-NeoX cannot express the model; `option` is the CLI option to name."""
    if cfg.options:
        raise ValueError(
            f"GPT-NeoX does not support {', '.join(f'model.{name}' for name in cfg.options)}: export without {option}, "
            "or train with the model section of preset v1"
        )


def neox_weights(model: GPT, naming: Naming) -> dict[str, torch.Tensor]:
    """Return all weights under their GPT-NeoX names; the tied output head is listed besides the embedding."""
    weights = {}
    for name, value in model.state_dict().items():
        module, _, part = name.rpartition(".")
        if module.startswith("blocks."):
            _, i, module = module.split(".", 2)
            theirs = f"{naming.block.format(i=i)}.{naming.parts[module]}"
        else:
            theirs = naming.top[module]
        if module == "attn.qkv":
            value = naming.join_heads(_halved(value, cfg=model.cfg)).flatten(0, 2)  # noqa: PLW2901
        weights[f"{theirs}.{part}"] = value
    return weights


def _halved(qkv: torch.Tensor, *, cfg: ModelConfig) -> torch.Tensor:
    """Reshape QKV weights to `(3, H, D, ...)`, with the even dimensions of each Q and K head before the odd ones."""
    q, k, v = qkv.unflatten(0, (3, cfg.H, cfg.D))
    order = torch.cat((torch.arange(0, cfg.D, 2), torch.arange(1, cfg.D, 2)))
    return torch.stack((q[:, order], k[:, order], v))


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
    join_heads=lambda heads: heads.transpose(0, 1),  # Q, K and V of a head are contiguous
)
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_NEVER = -1e6  # score of an entry that is listed only to keep its id, and never chosen


def export_transformers(talker: Talker, folder: Path, *, card: str) -> None:
    """Write a folder that AutoModelForCausalLM and AutoTokenizer load without custom code."""
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
    weights["embed_out.weight"] = weights["embed_out.weight"].clone()  # safetensors rejects tensors that share memory
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


def tokenizer_json(pieces: list[VocabularyEntry]) -> dict[str, Any]:
    """Return the tokenizer in the format of the `tokenizers` library: a Unigram model over bytes.

    Text is mapped to bytes in GPT-2's alphabet, and so are the vocabulary entries. Bytes are then ordinary entries.
    Unlike in the usual conversion of a SentencePiece model, a literal "▁", "<0x0A>" or "<unk>" in a text has no special
    meaning, and invalid UTF-8 decodes as in Python.
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


def _vocabulary(pieces: list[VocabularyEntry]) -> list[tuple[str, float]]:
    """Return (entry in the byte alphabet, score) by id.

    A byte that is also a one-character text entry is never produced by encoding; it keeps the name by which it is
    decoded.
    """
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
