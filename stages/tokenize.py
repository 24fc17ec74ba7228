"""tokenize@S and tokenize_chat@S: every row encoded once; a document ends with the end-of-text id, a turn likewise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.encoding import describe_tokenizer, encode_documents, write_sft_files
from niels_gpt.cache.formats import TOKEN_DTYPE, write_token_file
from niels_gpt.cache.integrity import read_split
from niels_gpt.cache.meta import describe_origin, list_files, read_meta, write_meta
from niels_gpt.chat_template import format_chat
from niels_gpt.data.documents import FILE_NAME, read_chats, read_texts
from niels_gpt.files.atomic import write_json
from niels_gpt.files.progress import progress
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.tokenizer.vocabulary import Tokenizer


def texts(raw: Path, rows: np.ndarray, *, title: str) -> Iterator[str]:
    with progress(total=len(rows), unit="doc", title=title) as bar:
        for batch in read_texts(raw, rows):
            yield from batch
            bar.update(len(batch))


def rendered(tokenizer: Tokenizer, raw: Path, rows: np.ndarray) -> Iterator[np.ndarray]:
    for batch in read_chats(raw, rows):
        for messages in batch:
            yield np.array(format_chat(tokenizer, messages), dtype=TOKEN_DTYPE)


def tokenize_texts(stage: Stage, tokenizer: Tokenizer, raw: Path, meta: dict[str, Any]) -> None:
    split, place = layout.SPLIT / stage.key, layout.TOKENS / stage.key
    out = stage.out(place)
    out.mkdir()
    totals = {}
    for name, rows in read_split(split, raw / FILE_NAME).items():
        documents = encode_documents(tokenizer, texts(raw, rows, title=f"{stage.title} {name}"))
        _, totals[name] = write_token_file(out / f"{name}_tokens.bin", out / f"{name}_idx.npy", documents)
    files = list_files(out, "*_*.*", published=str(place))
    write_meta(out / "meta.json", {**meta, "split": read_meta(split / "split.json"), "files": files})
    stage.say(f"{totals['train']:,} train and {totals['val']:,} val tokens -> {place}")


def tokenize_chats(stage: Stage, tokenizer: Tokenizer, raw: Path, meta: dict[str, Any]) -> None:
    split, place = layout.CHAT_SPLIT / stage.key, layout.CHATS / stage.key
    out = stage.out(place)
    out.mkdir()
    rows = read_split(split, raw / FILE_NAME)
    examples = {name: rendered(tokenizer, raw, chosen) for name, chosen in rows.items()}
    totals = write_sft_files(out, examples, special=tokenizer.special_token_ids(), T=stage.params.model.T)
    if not totals["train_examples"] or not totals["val_examples"]:
        raise ValueError(f"no chat has an answer within model.T = {stage.params.model.T} tokens: raise it")
    source = meta.pop("source")
    origin = describe_origin(source, read_meta(split / "split.json", required=["by"]))
    write_meta(out / "meta.json", {**meta, **origin, **totals})
    manifest = {
        **describe_tokenizer(tokenizer),
        "folder": str(place),
        "files": list_files(out, "*_*.*", published=str(place)),
    }
    write_json(stage.out(layout.CHAT_MANIFESTS / f"{stage.key}.json"), manifest)
    dropped = totals["train_dropped"] + totals["val_dropped"]
    stage.say(
        f"{totals['train_examples']:,} train and {totals['val_examples']:,} val chats, {dropped:,} dropped for want of "
        f"an answer within T -> {place}"
    )


def main(stage: Stage) -> None:
    tokenizer, raw = load_tokenizer(layout.TOKENIZER), layout.RAW / stage.key
    meta = {**describe_tokenizer(tokenizer), "source": read_meta(raw / "source.json", required=["name"])}
    (tokenize_chats if stage.chat_source else tokenize_texts)(stage, tokenizer, raw, meta)


if __name__ == "__main__":
    run_stage("tokenize", main)
