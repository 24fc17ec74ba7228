"""The JSON files that a run leaves, by shape: whole, or refused by name before anything is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from niels_gpt.files.sentences import read_text
from niels_gpt.pipeline import layout


class Score(BaseModel):
    nats: float
    bits_per_byte: float
    tokens: int
    quoted_tokens: int = 0
    nats_without_quotes: float | None = None
    bits_per_byte_without_quotes: float | None = None


class Drawn(BaseModel):
    drawn: float


class Trained(BaseModel):
    parameters: int
    tokens: int
    mix: dict[str, Drawn]


class File(BaseModel):
    path: str
    bytes: int
    sha256: str


class TokenFile(BaseModel):
    file: str
    tokens: int
    bytes: int
    sha256: str


class Split(BaseModel):
    tokens: int
    parts: list[TokenFile]


class MixedSource(BaseModel):
    val_name: str
    at: str | None = None
    train: Split
    val: Split


class Mix(BaseModel):
    vocab_size: int
    sources: dict[str, MixedSource]


class ChatSource(BaseModel):
    val_name: str
    folder: str
    files: list[File]


class ChatMix(BaseModel):
    vocab_size: int
    special_token_ids: dict[str, int] | None = None  # where there are no chats
    sources: dict[str, ChatSource]


class Extracted(BaseModel):
    extractable: int
    passages: int
    longest_run_tokens: int
    repeated_passages: int


class Attack(BaseModel):
    auc: float
    auc_95: tuple[float, float]
    tpr: float
    tpr_95: tuple[float, float]


class Sentences(BaseModel):
    asked: tuple[int, int]  # of how many
    documents_asked: tuple[int, int]
    held_out_reported: tuple[int, int]
    extractable: int
    longest_sampled_run_tokens: int


class Leak(BaseModel):
    extractable_sentences: int
    extractable_passages: int
    sentences: Sentences
    train: Extracted
    held_out: Extracted
    attack: Attack | None


class Leaks(BaseModel):
    measured: dict[str, str]
    sources: dict[str, dict[str, Leak]]


class ModelFile(BaseModel):
    T: int


class Scores(BaseModel, extra="allow"):
    """By model, its held-out streams; and beside the models the report card."""

    __pydantic_extra__: dict[str, dict[str, Score]]
    card: dict[str, dict[str, float]] = {}


_WRITTEN: dict[Path, tuple[Any, str]] = {
    layout.SCORES: (Scores, "dvc repro"),
    layout.TRAINED: (Trained, "dvc repro curves@train"),
    layout.LEAK: (Leaks, "dvc repro leak"),
    layout.MIX: (Mix, "dvc repro mix"),
    layout.CHAT_MIX: (ChatMix, "dvc repro mix"),
    layout.PRETRAINED / layout.CONFIG: (ModelFile, "dvc repro train"),
}


def read_result(path: Path) -> dict[str, Any]:
    """One of the files above, as plain values; a ValueError names it where it is absent or not what it should be."""
    shape, made_by = _WRITTEN[path]
    if not path.is_file():
        raise ValueError(f"there is no {path} yet: run `{made_by}` first")
    try:
        values: dict[str, Any] = json.loads(read_text(path))
        TypeAdapter(shape).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise ValueError(f"{path} is damaged ({where}: {first['msg']}): delete it and run `{made_by}`") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and run `{made_by}`") from error
    return values


def read_scores() -> dict[str, Any]:
    """By model, its held-out streams, without the report card."""
    return without_card(read_result(layout.SCORES))


def without_card(scores: dict[str, Any]) -> dict[str, Any]:
    return {model: table for model, table in scores.items() if model != layout.CARD}
