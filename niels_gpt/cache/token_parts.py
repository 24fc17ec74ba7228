"""Tokenize the parts of a source to token files, and chats to one file."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPE, TOKEN_DTYPE_NAME, read_offsets, write_token_file
from niels_gpt.chat_template import format_chat, supervised
from niels_gpt.data.corpus.parts import Part, Texts, read_chats, read_texts, reading_part
from niels_gpt.data.corpus.split_files import Split, Splits, part_rows
from niels_gpt.files.checks import sha256_file
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import Engine, Record, Worker, make_parts
from niels_gpt.tokenizer.tokenizers import load_tokenizer, tokenizer_file, tokenizer_sha256
from niels_gpt.tokenizer.vocabulary import Tokenizer

# A batch is what is encoded at once: so many texts, but not several whole books, whose ids are Python's integers first.
_BATCH_TEXTS = 64
_BATCH_CHARACTERS = 1 << 18


def encode_documents(tokenizer: Tokenizer, texts: Iterable[str], *, threads: int | None = None) -> Iterator[np.ndarray]:
    """Each text's ids with the end-of-text id behind them, in order, encoded on so many threads (None: all cores).

    Several small batches are under way at once: while one is in the encoder's own code, which lets Python go on, the
    ids of another become an array. What comes out does not depend on how many.
    """
    workers = threads or os.cpu_count() or 1
    eot = np.array([tokenizer.special_token_ids()["eot"]], dtype=TOKEN_DTYPE)
    batches = _batches(texts)
    pending: deque[Future[list[np.ndarray]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        while True:
            while len(pending) <= workers and (batch := next(batches, None)):
                pending.append(pool.submit(tokenizer.encode_batch, batch))
            if not pending:
                return
            for ids in pending.popleft().result():
                yield np.concatenate((ids, eot))


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if len(batch) == _BATCH_TEXTS or size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def write_sft_files(
    folder: Path, splits: Mapping[str, Iterable[np.ndarray]], *, special: Mapping[str, int], T: int | None
) -> dict[str, int]:
    """The token files of each split, without the examples that have nothing to learn within T; counts for meta.json."""
    totals: dict[str, int] = {}
    for split, examples in splits.items():
        dropped = 0

        def kept(examples: Iterable[np.ndarray] = examples) -> Iterator[np.ndarray]:
            nonlocal dropped
            for ids in examples:
                window = ids if T is None else ids[: T + 1]
                if supervised(window[None], asst_id=special["asst"], eot_id=special["eot"])[:, 1:].any():
                    yield ids
                else:
                    dropped += 1

        files = (folder / f"{split}_tokens.bin", folder / f"{split}_idx.npy")
        totals[f"{split}_examples"], totals[f"{split}_tokens"] = write_token_file(*files, kept())
        totals[f"{split}_dropped"] = dropped
    return totals


def describe_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """What meta.json says of it."""
    return {
        "token_dtype": TOKEN_DTYPE_NAME,
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
        "vocab_size": tokenizer.vocab_size,
        "special_token_ids": tokenizer.special_token_ids(),
    }


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
