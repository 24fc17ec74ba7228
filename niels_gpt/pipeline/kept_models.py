"""The model that answers while another one takes its place.

DVC deletes a stage's outputs before it runs the stage: while a model trains, its folder is not there. What DVC has once
recorded lies in its cache, though, under the hashes that dvc.lock names until the new model is whole. The same goes for
the tokenizer, which may be another one by then although models are still those of the one before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from niels_gpt.files.sentences import read_text
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.dvc_cache import DvcCache
from niels_gpt.pipeline.dvc_files import read_records


@dataclass(frozen=True)
class Answering:
    """Where the model to be asked lies, and its tokenizer; what its owner should know of them, if anything."""

    folder: Path
    tokenizer: Path
    said: str = ""


@contextmanager
def answering_model(folder: str) -> Iterator[Answering]:
    """The model of a folder, with the tokenizer that it was trained with; out of DVC's cache where the folder is not
    there. What comes out of the cache is links, which are gone when the block ends."""
    path = Path(os.path.relpath(folder))
    record = _record_of(path)
    if record is None:
        yield Answering(Path(folder), layout.TOKENIZER)
        return
    cache, said = DvcCache(), []
    with TemporaryDirectory() as temporary:
        place, tokenizer = Path(folder), layout.TOKENIZER
        model, own = record.model, record.tokenizer
        if not (path / layout.CONFIG).is_file() and cache.link(model, Path(temporary, "models", path.name)):
            place = Path(temporary, "models", path.name)
            said.append(
                f"{path} is not there (DVC removes a model before it trains the next): "
                f"the one before it answers, {model[:8]} in DVC's cache"
            )
        if place.exists() and (own != record.current_tokenizer or not tokenizer.is_dir()):
            tokenizer = Path(temporary, "tokenizer")
            if not cache.link(own, tokenizer):
                raise ValueError(
                    f"{path} was trained with another tokenizer than the one that {layout.TOKENIZER} holds now, and "
                    "DVC's cache does not have it: wait for the next model, which `dvc repro` makes"
                )
            said.append(f"{path} answers with the tokenizer that it was trained with, {own[:8]} in DVC's cache")
        yield Answering(place, tokenizer, "\n".join(said))


@dataclass(frozen=True)
class _Record:
    """By their hashes: a model, the tokenizer it was trained with, and the one that was made last."""

    model: str
    tokenizer: str
    current_tokenizer: str


def _record_of(path: Path) -> _Record | None:
    """What dvc.lock says of a model; None where it is none of the pipeline's, or nothing is recorded of it."""
    stage = next((stage for stage, folder in layout.MODEL_OF.items() if folder == path), None)
    records = read_records(read_text(layout.LOCK)) if stage and layout.LOCK.is_file() else None
    if stage is None or records is None or not {stage, "tokenizer"} <= set(records):
        return None
    model, own = _md5(records[stage], "outs", path), _md5(records[stage], "deps", layout.TOKENIZER)
    current = _md5(records["tokenizer"], "outs", layout.TOKENIZER)
    return _Record(model, own, current) if model and own and current else None


def _md5(record: Mapping[str, Any], kind: str, path: Path) -> str:
    return next((entry["md5"] for entry in record.get(kind, []) if entry["path"] == str(path)), "")
