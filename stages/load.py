"""load@S and load_chat@S: one source, as it lies, into one row a document or a chat."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from niels_gpt.data.documents import Chat, Document, write_chats, write_documents
from niels_gpt.data.dolly import iter_dolly_sft
from niels_gpt.data.files import check_input
from niels_gpt.data.fineweb_edu import iter_fineweb_edu
from niels_gpt.data.gutenberg import iter_gutenberg
from niels_gpt.data.hub import resolve_revision
from niels_gpt.data.oasst1 import iter_oasst1_sft
from niels_gpt.data.own_chats import iter_own_chats
from niels_gpt.data.primer import iter_primer
from niels_gpt.data.roam import iter_roam
from niels_gpt.data.text import iter_text
from niels_gpt.data.types import ChatSample, PretrainSample
from niels_gpt.data.wikitext import iter_articles, iter_wikitext
from niels_gpt.files.atomic import write_json
from niels_gpt.files.progress import Tally, progress, say_above_bar
from niels_gpt.pipeline.params import (
    AnySource,
    ChatSource,
    DollyLoad,
    FinewebEduLoad,
    GutenbergLoad,
    Load,
    Oasst1Load,
    OwnChatsLoad,
    PrimerLoad,
    RoamLoad,
    Source,
    StreamedLoad,
    TextLoad,
    WikitextLoad,
)
from niels_gpt.pipeline.stage import Stage, run_stage


def documents(source: Source, *, path: str, revision: str | None, patience_s: float) -> Iterator[Document]:
    match source.load:
        case WikitextLoad() as load:
            for split in ("train", "val"):
                lines = iter_wikitext(
                    path=path, config=load.config, split=split, revision=revision, streaming=load.dataset is None
                )
                for i, article in enumerate(iter_articles(lines)):
                    yield Document(id=f"{split}/{i} {article.meta['title']}", text=article.text, split=split)
        case FinewebEduLoad() as load:
            stream = streaming(load, revision=revision, patience_s=patience_s)
            pages = iter_fineweb_edu(path=path, name=load.config, **stream)
            yield from up_to_budget(pages, source, bytes_per_token=load.bytes_per_token)
        case GutenbergLoad() as load:
            books = iter_gutenberg(dataset_id=path, **streaming(load, revision=revision, patience_s=patience_s))
            yield from up_to_budget(books, source, bytes_per_token=load.bytes_per_token)
        case RoamLoad():
            yield from files(iter_roam(path))
        case TextLoad() as load:
            documents = files(iter_text(path, glob=load.glob, front_matter=load.front_matter))
            yield from cut_tails(documents, load.held_out_tail) if load.held_out_tail else documents
        case PrimerLoad() as load:
            yield from files(iter_primer(path, delimiter=load.delimiter))


def streaming(load: StreamedLoad, *, revision: str | None, patience_s: float) -> dict[str, Any]:
    """What the loaders of streamed datasets take alike."""
    return {
        "split": load.split,
        "shuffle": load.shuffle_buffer is not None,
        "shuffle_buffer_size": load.shuffle_buffer or 1,
        "seed": load.seed,
        "take": load.max_documents,
        "revision": revision,
        "patience_s": patience_s,
    }


def up_to_budget(samples: Iterator[PretrainSample], source: Source, *, bytes_per_token: float) -> Iterator[Document]:
    """Enough text for the source's token budgets, and no more; all of it where a budget is null."""
    budgets = (source.shard.max_train_tokens, source.shard.max_val_tokens)
    wanted = sum(budget or 0 for budget in budgets) * bytes_per_token if None not in budgets else float("inf")
    fetched = 0
    for i, sample in enumerate(samples):
        document = Document(id=str(sample.meta.get("id", i)), text=sample.text)
        yield document
        fetched += document.bytes()
        if fetched >= wanted:
            return


def cut_tails(documents: Iterator[Document], fraction: float) -> Iterator[Document]:
    """Every document in two: what comes first, to train on, and its end, to be held out."""
    for document in documents:
        cut = round(len(document.text) * (1 - fraction))
        yield Document(id=document.id, text=document.text[:cut], split="train")
        yield Document(id=f"{document.id}, end", text=document.text[cut:], split="val")


def files(samples: Iterator[PretrainSample]) -> Iterator[Document]:
    """Documents out of files; a file whose bytes were not UTF-8 is named once for each way that it was read."""
    named: set[tuple[str, str]] = set()
    for sample in samples:
        file, encoding = sample.meta["file"], sample.meta["encoding"]
        if encoding != "utf-8" and (file, encoding) not in named:
            named.add((file, encoding))
            damage = "what could not be read is shown as U+FFFD"
            read_as = f"read as {encoding}" + (f": {damage}" if encoding.startswith("damaged") else "")
            say_above_bar(f"  {file} is not UTF-8: {read_as}")
        yield Document(id=sample.meta["path"], text=sample.text)


def chats(source: ChatSource, *, path: str, revision: str | None) -> Iterator[Chat]:
    samples: Iterator[ChatSample]
    match source.load:
        case DollyLoad() as load:
            samples = iter_dolly_sft(
                path=path,
                seed=load.seed,
                take=load.max_documents,
                include_system=load.include_system,
                revision=revision,
            )
        case Oasst1Load() as load:
            samples = iter_oasst1_sft(
                path=path,
                seed=load.seed,
                take_trees=load.max_trees,
                english_only=load.english_only,
                max_messages=load.max_messages,
                revision=revision,
            )
        case OwnChatsLoad():
            samples = iter_own_chats(path)
    for sample in samples:
        yield Chat(
            id=str(sample.meta.get("leaf_message_id", sample.meta.get("index"))),
            messages=[vars(message) for message in sample.messages],
            group=sample.meta.get("message_tree_id"),
        )


def main(stage: Stage) -> None:
    source: AnySource = stage.chat_source or stage.source
    load = stage.chat_source.load if stage.chat_source else stage.source.load
    path, revision = source.input, None
    if isinstance(load, Load) and load.dataset is not None:
        path, config = load.dataset, getattr(load, "config", None)
        revision = resolve_revision(path, load.revision, name=config)
    elif not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist: put the source's text there, or take it out of params.yaml")
    elif faults := check_input(path):
        more = f" (and {len(faults) - 1} more: niels-gpt doctor names them all)" if faults[1:] else ""
        raise ValueError(faults[0] + more)
    out = stage.out(f"cache/raw/{stage.key}")
    with progress(total=None, unit="doc", title=stage.title) as bar:
        tally = Tally(bar, stage.title)
        if stage.chat_source:
            count = write_chats(out, chats(stage.chat_source, path=path, revision=revision), tick=tally)
        else:
            rows = documents(stage.source, path=path, revision=revision, patience_s=stage.params.runtime.hub_patience_s)
            # A blank document has nothing to learn from, and would only be an end of text.
            count = write_documents(out, (row for row in rows if row.text.strip()), tick=tally)
    if not count.rows:
        raise ValueError(f"{path} holds no text: put some there, or take the source out of params.yaml")
    facts = {"name": stage.key, **load.model_dump(), "streaming": isinstance(load, StreamedLoad)}
    write_json(out / "source.json", {**facts, "revision": revision, "rows": count.rows, "bytes": count.bytes})
    stage.say(f"{tally} -> cache/raw/{stage.key}")


if __name__ == "__main__":
    run_stage("load", main)
