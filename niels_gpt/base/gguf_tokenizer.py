"""Tokenizer of a GGUF file, written as the tokenizer.json that its model had before the conversion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from niels_gpt.files.atomic import write_json
from niels_gpt.tokenizer.pretrained import CONFIG, TEMPLATE, HFTokenizer
from niels_gpt.tokenizer.tokenizers import write_tokenizer_meta

_FIELDS = "tokenizer.ggml."
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


def write_tokenizer_from_gguf(metadata: Mapping[str, Any], folder: Path) -> HFTokenizer:
    """Write tokenizer.json, tokenizer_config.json, the chat template and meta.json; return the tokenizer."""
    fields = {key.removeprefix(_FIELDS): value for key, value in metadata.items() if key.startswith(_FIELDS)}
    kind, pre = fields.get("model"), fields.get("pre", "default")
    if kind != "gpt2":
        raise ValueError(f"it holds no tokenizer of byte-level BPE (gpt2), but a tokenizer of kind {kind!r}")
    if pre not in _PRE_TOKENIZERS:
        raise ValueError(f"the GGUF file has the pre-tokenizer {pre!r}; known: {', '.join(_PRE_TOKENIZERS)}")
    tokens, types, merges = (fields.get(key) or [] for key in ("tokens", "token_type", "merges"))
    if not tokens or not merges or len(types) != len(tokens):
        raise ValueError("the GGUF file lacks tokens, token types or merges of its tokenizer: it may be damaged")
    entries = list(zip(range(len(tokens)), tokens, types, strict=True))
    as_is = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    off = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    described = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id, "content": token, "special": kind == _CONTROL, **as_is}
            for id, token, kind in entries
            if kind in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": _GPT2,
        "model": {
            "type": "BPE",
            **off,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": {token: id for id, token, kind in entries if kind in (_NORMAL, _CONTROL)},
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "tokenizer.json", described)
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: fields.get(f"{key}_token_id") for name, key in names.items()}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_json(folder / CONFIG, {**config, **{name: tokens[id] for name, id in ids.items() if id is not None}})
    if template := metadata.get("tokenizer.chat_template"):
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
