"""Stages run in this process, in the current folder, without DVC: for tests of what one stage does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from niels_gpt.data.documents import write_chats, write_documents
from niels_gpt.data.types import Chat, Document
from niels_gpt.files.atomic import publish
from niels_gpt.pipeline.params import Params, parse_params
from niels_gpt.pipeline.stage import Inputs, Stage
from stages import mix, shard, split, tokenize, tokenizer
from tests.conftest import ROOT, TINY, with_values


def tiny_params(changes: dict[str, object] | None = None) -> Params:
    """The sample's, cut down, with some values changed by their dotted names."""
    sample = (ROOT / "presets/sample.yaml").read_text(encoding="utf-8")
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
            "input": "data/notes",
            "remote": "store",
            "val_name": "val_notes",
            "load": {"kind": "roam"},
            "split": {"by": "document", "val_frac": 0.3, "seed": 1},
            "shard": {"max_train_tokens": None, "max_val_tokens": None},
        }
    },
    "chats": {
        "own": {
            "input": "data/own",
            "remote": "store",
            "val_name": "val_own",
            "load": {"kind": "chat"},
            "split": {"by": "document", "val_frac": 0.3, "seed": 1},
        }
    },
    "p_train": {"notes": 1.0},
    "p_val": {"notes": 1.0},
    "p_sft": {"own": 1.0},
    "splice.dataset_name": "notes",
}
STAGES: dict[str, tuple[Callable[[Stage], None], str]] = {
    "split notes": (split.main, "notes"),
    "split own": (split.main, "own"),
    "tokenizer": (tokenizer.main, ""),
    "tokenize notes": (tokenize.main, "notes"),
    "tokenize own": (tokenize.main, "own"),
    "shard notes": (shard.main, "notes"),
    "mix": (mix.main, ""),
}


@cache
def notes_params() -> Params:
    """Of notes and chats of one's own, and of nothing else."""
    return tiny_params(SOURCES)


def run(name: str, params: Params | None = None) -> None:
    """One of the stages above."""
    main, key = STAGES[name]
    run_in_process(name.split(maxsplit=1)[0], main, params or notes_params(), key)


def make_caches(notes: Sequence[str], params: Params | None = None) -> None:
    """Notes, and twelve chats, as the stages leave them in cache/: raw, split, tokens, shards, mix."""
    write_documents(Path("cache/raw/notes"), [Document(id=str(i), text=note) for i, note in enumerate(notes)])
    messages = [{"role": "user", "content": "why"}, {"role": "assistant", "content": "because"}]
    write_chats(Path("cache/raw/own"), [Chat(id=str(i), messages=messages) for i in range(12)])
    for name in ("notes", "own"):
        Path(f"cache/raw/{name}/source.json").write_text(json.dumps({"name": name, "bytes": 200, "streaming": False}))
    for name in STAGES:
        run(name, params)
