"""Exports as folders: in the project's own format, and for the transformers library."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from niels_gpt.chat_format import PROMPT, ROLES
from niels_gpt.config import Renderer, to_dict
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import write_sums
from niels_gpt.talk.export.architectures import architecture_of
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
class Piece:
    """Vocabulary entry.

    `text` entries are chosen by a Unigram model, where `score` is the log probability; `byte` entries encode what no
    `text` entry covers. The other kinds have no bytes, and no text encodes to them.
    """

    kind: Literal["text", "byte", "chat", "unknown"]
    name: str
    bytes: bytes
    score: float = 0.0


def pieces_of(tokenizer: Tokenizer) -> list[Piece]:
    """Return the vocabulary entries in order of their ids."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return _trained_pieces(tokenizer)
    assert isinstance(tokenizer, ByteTokenizer)
    spelt = [Piece("byte", f"<0x{byte:02X}>", bytes([byte])) for byte in range(BYTE_VALUES)]
    return spelt + [Piece("chat", name, b"") for name in SPECIAL_TOKENS]


def _trained_pieces(tokenizer: SentencePieceTokenizer) -> list[Piece]:
    import sentencepiece

    model: Any = sentencepiece.SentencePieceProcessor(model_file=tokenizer.model_path)
    kinds: list[tuple[Literal["byte", "chat", "unknown"], Any]] = [
        ("byte", model.IsByte),
        ("chat", model.IsControl),
        ("unknown", model.IsUnknown),
    ]
    return [
        Piece(
            next((kind for kind, is_one in kinds if is_one(i)), "text"),
            model.IdToPiece(i),
            tokenizer.piece(i),
            model.GetScore(i),
        )
        for i in range(tokenizer.vocab_size)
    ]


def byte_score(pieces: list[Piece]) -> float:
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
      {{- raise_exception('a message holds the name of a chat token, which would be read as one: take it out') -}}
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


_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_NEVER = -1e6  # score of an entry that is listed only to keep its id, and never chosen


def export_transformers(talker: Talker, folder: Path, *, card: str) -> None:
    """Write a folder that AutoModelForCausalLM and AutoTokenizer load without custom code."""
    cfg = talker.model.cfg
    architecture = architecture_of(cfg, option="--transformers")
    eot = talker.tokenizer.special_token_ids()["eot"]
    folder.mkdir(parents=True)
    ends = {"bos_token_id": eot, "eos_token_id": eot}
    write_json(folder / "config.json", {**architecture.transformers_config(cfg), **ends})
    sampling = {"do_sample": True, "temperature": SAMPLING.temperature, "top_k": SAMPLING.top_k}
    write_json(folder / "generation_config.json", {**ends, "pad_token_id": eot, **sampling})
    weights = architecture.weights_to_transformers(talker.model.state_dict(), cfg)
    # Copied: safetensors rejects tensors that share memory.
    save_weights(folder, {name: value.clone() for name, value in weights.items()})
    _write_tokenizer(talker, folder)
    (folder / "README.md").write_text(card, encoding="utf-8")
    write_sums(folder)


def _write_tokenizer(talker: Talker, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    eot, pieces = talker.tokenizer.special_token_ids()["eot"], pieces_of(talker.tokenizer)
    write_json(folder / "tokenizer.json", tokenizer_json(pieces))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": pieces[eot].name,
            "pad_token": pieces[eot].name,
            "model_max_length": talker.model.cfg.T,
            "clean_up_tokenization_spaces": False,
        },
    )
    (folder / "chat_template.jinja").write_text(jinja_template(talker.renderer), encoding="utf-8")


def tokenizer_json(pieces: list[Piece]) -> dict[str, Any]:
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


def _vocabulary(pieces: list[Piece]) -> list[tuple[str, float]]:
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
