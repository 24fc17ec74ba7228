"""Helpers that run stages in this process and in the working folder, without DVC, for tests of single stages."""

import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.data.corpus.parts import (
    CHAT_SCHEMA,
    DOCUMENT_SCHEMA,
    MANIFEST,
    Part,
    Texts,
    manifest_of,
    open_texts,
    read_column,
    read_contents,
    reading_part,
    write_rows,
)
from niels_gpt.data.corpus.split import Bonds
from niels_gpt.data.corpus.split_files import write_bonds
from niels_gpt.data.types import Chat, Document
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import sha256_file
from niels_gpt.pipeline.params import Params, parse_params
from niels_gpt.pipeline.stage import Inputs, Stage
from niels_gpt.pipeline.stores import store_of
from stages import cache as cache_stage
from stages import duplicates, split, tokenize, tokenizer
from tests.conftest import ROOT, TINY, with_values


def tiny_params(changes: dict[str, object] | None = None) -> Params:
    """Return the sample's parameters at a tiny size, with `changes` applied by dotted name."""
    sample = (ROOT / "params.yaml").read_text(encoding="utf-8")
    return parse_params(with_values(sample, {**TINY, **(changes or {})}))[0]


def run_in_process(name: str, main: Callable[[Stage], None], params: Params, key: str = "") -> None:
    """Run one stage and publish its outputs at the end, as `run_stage` does."""
    stage = Stage(name=name, key=key, params=params, inputs=Inputs(params={"of": name}, deps={}))
    main(stage)
    stage.publishing.close()


SOURCES: dict[str, object] = {
    "sources": {
        "notes": {
            "use": "text",
            "input": "data/notes",
            "remote": "store",
            "val_name": "val_notes",
            "load": {"kind": "roam"},
            "split": {"by": "document", "val_frac": 0.3, "seed": 1},
            "budget": {"max_train_tokens": None, "max_val_tokens": None},
        },
        "own": {
            "use": "chat",
            "input": "data/own",
            "remote": "store",
            "val_name": "val_own",
            "load": {"kind": "chat"},
            "split": {"by": "document", "val_frac": 0.3, "seed": 1},
            "budget": {"max_train_tokens": None, "max_val_tokens": None},
        },
    },
    "duplicates": {"exact": "keep", "near": None},  # test texts are much alike
    "p_train": {"notes": 1.0},
    "p_val": {"notes": 1.0},
    "p_sft": {"own": 1.0},
    "splice.dataset_name": "notes",
}
STAGES: dict[str, tuple[Callable[[Stage], None], str]] = {
    "duplicates": (duplicates.main, ""),
    "split notes": (split.main, "notes"),
    "split own": (split.main, "own"),
    "tokenizer": (tokenizer.main, ""),
    "tokenize notes": (tokenize.main, "notes"),
    "tokenize own": (tokenize.main, "own"),
    "cache": (cache_stage.main, ""),
}


@cache
def notes_params() -> Params:
    """Return parameters whose only sources are notes and the user's own chats."""
    return tiny_params(SOURCES)


def run(name: str, params: Params | None = None) -> None:
    """Run one of `STAGES`."""
    main, key = STAGES[name]
    run_in_process(name.split(maxsplit=1)[0], main, params or notes_params(), key)


def write_source(
    name: str, rows: Sequence[Document] | Sequence[Chat], *, part_rows: int = 1000, **facts: object
) -> Texts:
    """Write a source as `load` does, in parts of `part_rows` rows."""
    folder, parts = Path("cache/raw", name), []
    for number, first in enumerate(range(0, len(rows), part_rows)):
        path = folder / f"part-{number:05d}.parquet"
        some = rows[first : first + part_rows]
        documents, chats = ([row for row in some if isinstance(row, kind)] for kind in (Document, Chat))
        count = write_rows(path, CHAT_SCHEMA, chats) if chats else write_rows(path, DOCUMENT_SCHEMA, documents)
        parts.append(Part(path.name, *count, path.stat().st_size, sha256_file(path)))
    write_json(folder / MANIFEST, manifest_of(parts, {"name": name, "streaming": False, **facts}, at=None))
    return open_texts(folder)


def no_duplicates(name: str, params: Params) -> None:
    """Write what `duplicates` writes for a source without duplicates."""
    digest, folder = open_texts(Path("cache/raw", name), stored=store_of(params, name)).digest, Path("cache/duplicates")
    shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    write_bonds(folder / name, Bonds(), texts_sha256=digest, published=str(folder / name))


def make_caches(notes: Sequence[str], params: Params | None = None) -> None:
    """Run all stages on the notes and twelve chats, so that cache/ has raw texts, splits, tokens and the mix."""
    write_source("notes", [Document(id=str(i), text=note) for i, note in enumerate(notes)])
    messages = [{"role": "user", "content": "why"}, {"role": "assistant", "content": "because"}]
    write_source("own", [Chat(id=str(i), messages=messages) for i in range(12)])
    for name in STAGES:
        run(name, params)


class Checkout:
    """Project folder for tests of a single source, `roam`."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "data/roam"
        self.notes.mkdir(parents=True)

    def run(self, module: Any, name: str, **changes: object) -> Path:
        """Run the `main` of a stage, move its outputs into place, and return the path of the first."""
        text = with_values(
            (ROOT / "params.yaml").read_text(), TINY | {f"sources.roam.{k}": v for k, v in changes.items()}
        )
        stage = Stage(name=name, key="roam", params=parse_params(text)[0], inputs=Inputs({}, {}))
        if module is split:
            no_duplicates("roam", stage.params)
        module.main(stage)
        stage.publishing.close()
        return next(iter(stage.outs))


def texts(folder: Path) -> list[str]:
    """Return the texts of all parts of a source, after checking their number and size against the manifest."""
    found, opened = [], open_texts(folder)
    for part in opened.parts:
        with reading_part(opened.store, part) as path:
            found += texts_of(path)
    assert len(found) == opened.rows
    assert sum(len(text.encode()) for text in found) == opened.text_bytes
    return found


def texts_of(file: Path) -> list[str]:
    return [text for group in read_contents(file, np.arange(len(read_column(file, "id")))) for text in group]


@contextmanager
def own_signals() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM after the block, since a training stage replaces them."""
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
