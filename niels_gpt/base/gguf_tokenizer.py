"""Tokenizer of a GGUF file, written as the tokenizer.json that its model had before the conversion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from niels_gpt.files.atomic import write_json
from niels_gpt.tokenizer.pretrained import CONFIG, TEMPLATE, HFTokenizer
from niels_gpt.tokenizer.tokenizers import write_tokenizer_meta

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # GGUF's token types
# Regular expressions by which words are found before merging, as published with each model family.
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> dict[str, Any]:
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [step, _byte_level(use_regex=False)]}


_DIGITS = {"type": "Digits", "individual_digits": True}
_GPT2 = _byte_level(use_regex=True)
# `tokenizer.ggml.pre` -> the pre-tokenizer of tokenizer.json. Files without a known one are "default".
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt2": _GPT2,
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _GPT2]},
    "qwen2": _split(_QWEN2),
    "llama-bpe": _split(_LLAMA3),
}


def write_tokenizer_from_gguf(fields: Mapping[str, Any], folder: str | Path) -> HFTokenizer:
    """Write tokenizer.json, tokenizer_config.json, the chat template and meta.json; return the tokenizer.

    `fields` is the metadata of the file by key: plain values, or the fields of a `gguf.GGUFReader`.
    """
    folder = Path(folder)
    model, pre = _value(fields, "model"), _value(fields, "pre", "default")
    if model != "gpt2":
        raise ValueError(f"the GGUF file has a tokenizer of kind {model!r}: only byte-level BPE (gpt2) can be used")
    if pre not in _PRE_TOKENIZERS:
        raise ValueError(f"the GGUF file has the pre-tokenizer {pre!r}; known: {', '.join(_PRE_TOKENIZERS)}")
    tokens, types, merges = (_value(fields, key, []) for key in ("tokens", "token_type", "merges"))
    if not tokens or not merges or len(types) != len(tokens):
        raise ValueError("the GGUF file lacks tokens, token types or merges of its tokenizer: it may be damaged")
    kinds = [int(kind) for kind in types]
    folder.mkdir(parents=True, exist_ok=True)
    described = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": id,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind == _CONTROL,
            }
            for id, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": _GPT2,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": {
                token: id
                for id, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
                if kind in (_NORMAL, _CONTROL)
            },
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }
    write_json(folder / "tokenizer.json", described)
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: _value(fields, f"{key}_token_id") for name, key in names.items()}
    write_json(
        folder / CONFIG,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{name: tokens[int(id)] for name, id in ids.items() if id is not None},
            "clean_up_tokenization_spaces": False,
        },
    )
    if template := _value(fields, "chat_template", None, prefix="tokenizer."):
        (folder / TEMPLATE).write_text(template, encoding="utf-8")
    tokenizer = write_tokenizer_meta(folder, vocab_size=len(tokens))
    assert isinstance(tokenizer, HFTokenizer)
    return tokenizer


def pre_tokenizer_name(described: Mapping[str, Any]) -> str:
    """Return GGUF's name for the pre-tokenizer of a tokenizer.json; raise a ValueError if it has none."""
    for name in ("smollm", "qwen2", "llama-bpe", "gpt-2"):
        if _significant(described["pre_tokenizer"]) == _significant(_PRE_TOKENIZERS[name]):
            return name
    raise ValueError("GGUF has no name for the pre-tokenizer of this model: export it without --gguf")


def _significant(step: Any) -> Any:
    """Return a pre-tokenizer without the options that change no token."""
    if isinstance(step, list):
        return [_significant(member) for member in step]
    if not isinstance(step, dict):
        return step
    defaults = {"use_regex": True} if step.get("type") == "ByteLevel" else {}
    return {key: _significant(value) for key, value in {**defaults, **step}.items() if key != "trim_offsets"}


def _value(fields: Mapping[str, Any], key: str, default: Any = None, *, prefix: str = "tokenizer.ggml.") -> Any:
    field = fields.get(prefix + key, default)
    return field.contents() if hasattr(field, "contents") else field
