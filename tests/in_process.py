"""Stages run in this process, in the current folder, without DVC: for tests of what one stage does."""

from __future__ import annotations

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
    read_texts,
    reading_part,
    write_rows,
)
from niels_gpt.data.corpus.split import Bonds
from niels_gpt.data.corpus.split_files import write_bonds
from niels_gpt.data.types import Chat, Document
from niels_gpt.files.atomic import publish, write_json
from niels_gpt.files.checks import sha256_file
from niels_gpt.pipeline.params import Params, parse_params
from niels_gpt.pipeline.stage import Inputs, Stage
from niels_gpt.pipeline.stores import store_of
from stages import cache as cache_stage
from stages import duplicates, split, tokenize, tokenizer
from tests.conftest import ROOT, TINY, with_values


def tiny_params(changes: dict[str, object] | None = None) -> Params:
    """The sample's, cut down, with some values changed by their dotted names."""
    sample = (ROOT / "params.yaml").read_text(encoding="utf-8")
    return parse_params(with_values(sample, {**TINY, **(changes or {})}))[0]


def run_in_process(name: str, main: Callable[[Stage], None], params: Params, key: str = "") -> None:
    """One stage, its outs published at the end as `run_stage` does."""
    stage = Stage(name=name, key=key, params=params, inputs=Inputs(params={"of": name}, deps={}))
    main(stage)
    for final, temporary in stage._outs.items():
        publish(temporary, final)


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
    "duplicates": {"exact": "keep", "near": None},  # the texts of tests are much alike
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
    """Of notes and chats of one's own, and of nothing else."""
    return tiny_params(SOURCES)


def run(name: str, params: Params | None = None) -> None:
    """One of the stages above."""
    main, key = STAGES[name]
    run_in_process(name.split(maxsplit=1)[0], main, params or notes_params(), key)


def write_source(
    name: str, rows: Sequence[Document] | Sequence[Chat], *, part_rows: int = 1000, **facts: object
) -> Texts:
    """What `load` leaves of a source, in parts of so many rows."""
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
    """What `duplicates` leaves of a source in which there are none."""
    digest, folder = open_texts(Path("cache/raw", name), stored=store_of(params, name)).digest, Path("cache/duplicates")
    shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    write_bonds(folder / name, Bonds(), texts_sha256=digest, published=str(folder / name))


def make_caches(notes: Sequence[str], params: Params | None = None) -> None:
    """Notes, and twelve chats, as the stages leave them in cache/: raw, split, tokens, mix."""
    write_source("notes", [Document(id=str(i), text=note) for i, note in enumerate(notes)])
    messages = [{"role": "user", "content": "why"}, {"role": "assistant", "content": "because"}]
    write_source("own", [Chat(id=str(i), messages=messages) for i in range(12)])
    for name in STAGES:
        run(name, params)


class Checkout:
    """A folder whose one source of interest is `roam`."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "data/roam"
        self.notes.mkdir(parents=True)

    def run(self, module: Any, name: str, **changes: object) -> Path:
        """Run a stage's own part; what it wrote lies in the folder this returns, as if it had been published."""
        text = with_values(
            (ROOT / "params.yaml").read_text(), TINY | {f"sources.roam.{k}": v for k, v in changes.items()}
        )
        stage = Stage(name=name, key="roam", params=parse_params(text)[0], inputs=Inputs({}, {}))
        if module is split:
            no_duplicates("roam", stage.params)
        module.main(stage)
        for final, temporary in stage._outs.items():
            temporary.rename(final)
        return next(iter(stage._outs))


def texts(folder: Path) -> list[str]:
    """All that a source's parts have."""
    found, opened = [], open_texts(folder)
    for part in opened.parts:
        with reading_part(opened.store, part) as path:
            found += texts_of(path)
    assert len(found) == opened.rows
    assert sum(len(text.encode()) for text in found) == opened.text_bytes
    return found


def texts_of(file: Path) -> list[str]:
    return [text for group in read_texts(file, np.arange(len(read_column(file, "id")))) for text in group]


@contextmanager
def own_signals() -> Iterator[None]:
    """A training stage takes Ctrl-C and SIGTERM; afterwards they are whose they were."""
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
