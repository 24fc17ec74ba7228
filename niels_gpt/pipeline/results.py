"""Results of a run as JSON, checked for the keys that the commands use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from niels_gpt.files.damage import Damaged
from niels_gpt.files.descriptions import check_keys, read_meta
from niels_gpt.pipeline import layout

_SCORE = ("*.*.nats", "*.*.bits_per_byte", "*.*.tokens")  # by model and held-out stream
_PART = ("train.tokens", "train.parts.[].sha256", "val.tokens")
_LEAK = (
    *("extractable_sentences", "extractable_passages", "attack"),
    *(f"sentences.{key}" for key in ("asked", "documents_asked", "held_out_reported", "longest_sampled_run_tokens")),
    *(f"{side}.{key}" for side in ("train", "held_out") for key in ("extractable", "passages", "longest_run_tokens")),
)
_WRITTEN = {  # the command that writes a file, and the keys it must have
    layout.SCORES: ("dvc repro", ()),
    layout.TRAINED: ("dvc repro curves@train", ("parameters", "tokens", "mix.*.drawn")),
    layout.LEAK: ("dvc repro leak", ("measured", *(f"sources.*.*.{key}" for key in _LEAK))),
    layout.MIX: ("dvc repro mix", ("vocab_size", *(f"sources.*.{key}" for key in _PART))),
    layout.CHAT_MIX: ("dvc repro mix", ("vocab_size", "sources.*.files.[].sha256")),
    layout.PRETRAINED / layout.CONFIG: ("dvc repro train", ("T",)),
}


def read_result(path: Path) -> dict[str, Any]:
    """Read one of these files, the scores without their card; a ValueError names a missing or damaged one."""
    made_by, required = _WRITTEN[path]
    if not path.is_file():
        raise ValueError(f"there is no {path} yet: run `{made_by}` first")
    try:
        result = read_meta(path, required=required)
        return without_card(result) if path == layout.SCORES else result
    except Damaged as error:
        raise ValueError(f"{error} with `{made_by}`") from error


def without_card(scores: dict[str, Any]) -> dict[str, Any]:
    """Drop the report card, and check that what is left is scores."""
    models = {model: table for model, table in scores.items() if model != layout.CARD}
    check_keys(models, _SCORE, path=layout.SCORES)
    return models
