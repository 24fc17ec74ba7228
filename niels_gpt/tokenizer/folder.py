"""A tokenizer on disk: the one file that defines it, and a meta.json that says which bytes that file has."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from niels_gpt.files.atomic import json_text, write_json
from niels_gpt.files.checksums import sha256_file
from niels_gpt.files.damage import Damaged
from niels_gpt.tokenizer.bytes import ByteTokenizer
from niels_gpt.tokenizer.sentencepiece import SentencePieceTokenizer
from niels_gpt.tokenizer.vocabulary import Tokenizer

FILE_NAMES = ("tokenizer.json", "spm.model")  # one of the two lies in a tokenizer's folder


def tokenizer_file(path: str | Path) -> Path:
    """The one file that defines the tokenizer in a folder (or the file itself)."""
    path = Path(path)
    if path.is_file():
        return path
    for name in FILE_NAMES:
        if (path / name).is_file():
            return path / name
    raise Damaged(path, f"holds no tokenizer ({' or '.join(FILE_NAMES)})")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a folder that the tokenizer stage wrote, or of one file: tokenizer.json or spm.model.

    Where a meta.json beside it says which bytes it had, it must have them still: a model with one flipped bit is read
    without a word (73 of 200 tried), and encodes otherwise.
    """
    file = tokenizer_file(path)
    meta = file.with_name("meta.json")
    known = _read_description(meta).get("tokenizer_sha256") if meta.is_file() else None
    if known is not None and known != sha256_file(file):
        raise Damaged(file, f"is not the tokenizer that {meta} describes: one of the two is damaged")
    if file.suffix != ".json":
        return SentencePieceTokenizer(file)
    kind = _read_description(file).get("kind")
    if kind != "byte":
        raise ValueError(f"{file} describes a tokenizer of kind {kind!r}; known: byte")
    return ByteTokenizer()


def describe(tokenizer: Tokenizer, kind: str) -> dict[str, Any]:
    """What tokenizer.json holds for a tokenizer that needs no model file."""
    return {"kind": kind, "vocab_size": tokenizer.vocab_size, "special_token_ids": tokenizer.special_token_ids()}


def tokenizer_sha256(tokenizer: Tokenizer) -> str:
    """Of the file that defines it: the model, or for bytes, which need none, the description in its place."""
    path = getattr(tokenizer, "model_path", None)
    if path:
        return sha256_file(path)
    return hashlib.sha256(json_text(describe(tokenizer, "byte")).encode("utf-8")).hexdigest()


def write_tokenizer(folder: Path, *, model: bytes | None) -> Tokenizer:
    """spm.model, or for bytes (no model) tokenizer.json, and meta.json beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    if model is None:
        write_json(folder / "tokenizer.json", describe(ByteTokenizer(), "byte"))
    else:
        (folder / "spm.model").write_bytes(model)
    return write_tokenizer_meta(folder)


def write_tokenizer_meta(folder: Path) -> Tokenizer:
    """Beside the file that defines a tokenizer, a meta.json that says what it is and which bytes it has."""
    tokenizer = load_tokenizer(folder)
    kind = "byte" if isinstance(tokenizer, ByteTokenizer) else "sentencepiece"
    digest = sha256_file(tokenizer_file(folder))
    write_json(folder / "meta.json", {**describe(tokenizer, kind), "tokenizer_sha256": digest})
    return tokenizer


def _read_description(file: Path) -> dict[str, Any]:
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Damaged(file, f"does not describe a tokenizer ({error})") from error
    if not isinstance(description, dict):
        raise Damaged(file, "does not describe a tokenizer (no JSON object)")
    return description
