"""Parts of text to token files: one for training and one for validation of each part, whoever makes it; and chats."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.encoding import encode_documents
from niels_gpt.cache.formats import TOKEN_DTYPE, write_token_file
from niels_gpt.cache.integrity import read_offsets
from niels_gpt.chat_template import format_chat
from niels_gpt.data.documents import read_chats, read_texts
from niels_gpt.data.parts import Part, Texts, reading_part
from niels_gpt.data.splits import Split, Splits, part_rows
from niels_gpt.engine.engine import Engine, Worker
from niels_gpt.engine.records import Record, make_parts
from niels_gpt.files.checksums import sha256_file
from niels_gpt.files.store import Store
from niels_gpt.tokenizer.folder import load_tokenizer, tokenizer_file
from niels_gpt.tokenizer.vocabulary import Tokenizer

SPLITS = ("train", "val")


@dataclass(frozen=True)
class PartToEncode:
    """A part of text, how its rows are split, the file that defines the tokenizer, and where the tokens go."""

    texts: Store
    part: Part
    split: Split
    tokenizer: tuple[str, bytes]
    tokens: Store

    @property
    def name(self) -> str:
        return self.part.name


def encode_part(item: PartToEncode, worker: Worker) -> Record:
    """Its token files, with the offset of every document, and a record of them. A split with no row of this part has no
    file. The bytes are a function of the part, the tokenizer and the split."""
    tokenizer = _unpacked(*item.tokenizer)
    files: list[dict[str, Any]] = []
    counts: dict[str, dict[str, int]] = {}
    with reading_part(item.texts, item.part) as path:
        rows = part_rows(item.split, path)
        for split in SPLITS:
            counts[split] = {"documents": 0, "tokens": 0}
            if not len(rows[split]):
                continue
            ids, idx = f"{split}/{item.name}.bin", f"{split}/{item.name}.idx.npy"
            with item.tokens.writing(ids) as ids_path, item.tokens.writing(idx) as idx_path:
                texts = _told(worker.tick, read_texts(path, rows[split]))
                documents = encode_documents(tokenizer, texts, threads=worker.threads)
                number, tokens = write_token_file(ids_path, idx_path, documents)
                counts[split] = {"documents": number, "tokens": tokens}
                files += [_described(ids, ids_path), _described(idx, idx_path)]
    return {"files": files, **counts}


def encode_parts(
    engine: Engine,
    texts: Texts,
    splits: Splits,
    tokenizer: Path,
    *,
    tokens: Store,
    budgets: Mapping[str, int | None],
    say: Callable[[str], object],
    tick: Callable[[int], object],
) -> dict[str, Any]:
    """{"train": ..., "val": ...} for the manifest: the token files within each budget of tokens, whole parts in order,
    the last one up to the end of a document."""
    file = tokenizer_file(tokenizer)
    packed = (file.name, file.read_bytes())
    items = [PartToEncode(texts.store, part, split, packed, tokens) for part, split in splits.by_part(texts)]

    def enough(records: Sequence[Record]) -> bool:
        return all(
            budget is not None and sum(record[split]["tokens"] for record in records) >= budget
            for split, budget in budgets.items()
        )

    records = make_parts(engine, encode_part, items, store=tokens, enough=enough, say=say, tick=tick)
    return {split: _within(tokens, records, split, budgets[split]) for split in SPLITS}


def listed_names(counted: Mapping[str, Any]) -> set[str]:
    """The names of all files that such a manifest lists."""
    parts = [part for split in SPLITS for part in counted[split]["parts"]]
    return {file["file"] for part in parts for file in (part, part["offsets"])}


def _within(store: Store, records: Sequence[Record], split: str, budget: int | None) -> dict[str, Any]:
    """The files of a split, as far as the budget goes."""
    parts: list[dict[str, Any]] = []
    total = 0
    for record in records:
        tokens = record[split]["tokens"]
        if not tokens:
            continue
        ids, offsets = (file for file in record["files"] if file["file"].startswith(f"{split}/"))
        room = tokens if budget is None else budget - total
        counts = record[split] if tokens <= room else _cut(store, offsets["file"], tokens, room)
        if counts["tokens"]:
            parts.append({**ids, **counts, "offsets": offsets})
            total += counts["tokens"]
        if tokens > room:  # no document of a later part, which may be short enough
            break
    return {"tokens": total, "parts": parts}


def _cut(store: Store, offsets: str, tokens: int, room: int) -> dict[str, int]:
    """How many documents of a part, and tokens, there is room for."""
    with store.reading(offsets) as path:
        starts, lengths = read_offsets(path, tokens=tokens)
    ends = starts + lengths
    documents = int(np.searchsorted(ends, room, side="right"))
    return {"documents": documents, "tokens": int(ends[documents - 1]) if documents else 0}


def encode_chats(tokenizer: Tokenizer, texts: Texts, splits: Splits) -> dict[str, Iterator[np.ndarray]]:
    """{split: ids of every chat}, rendered with the chat tokens."""

    def rendered(name: str) -> Iterator[np.ndarray]:
        for part, split in splits.by_part(texts):
            with reading_part(texts.store, part) as path:
                for batch in read_chats(path, part_rows(split, path)[name]):
                    for messages in batch:
                        yield np.array(format_chat(tokenizer, messages), dtype=TOKEN_DTYPE)

    return {name: rendered(name) for name in SPLITS}


def _told(tick: Callable[[int], object], batches: Iterator[list[str]]) -> Iterator[str]:
    for batch in batches:
        yield from batch
        tick(sum(map(len, batch)))


def _described(file: str, path: Path) -> dict[str, Any]:
    return {"file": file, "bytes": path.stat().st_size, "sha256": sha256_file(path)}


@lru_cache(maxsize=2)
def _unpacked(name: str, data: bytes) -> Tokenizer:
    """The tokenizer that a file of that name defines. It comes with the part: a worker may be on another machine."""
    with tempfile.TemporaryDirectory(prefix="niels_gpt-") as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        return load_tokenizer(path)
