"""Tokenization of the parts of a source to token files, and of chats to one file per split."""

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.formats import ANSWER_IDS, read_offsets, write_token_file
from niels_gpt.chat_template import chat_renderer, supervised
from niels_gpt.data.corpus.parts import Texts, read_contents
from niels_gpt.data.corpus.split_files import SplitPart, Splits
from niels_gpt.data.types import grouped
from niels_gpt.files.checks import describe_file
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import Engine, Record, Worker, make_parts
from niels_gpt.tokenizer.tokenizers import load_tokenizer, tokenizer_files, tokenizer_sha256
from niels_gpt.tokenizer.vocabulary import Tokenizer

SPLITS = ("train", "val")
# Limits of a batch given to the encoder. The second keeps several whole books out of one batch: ids are Python integers
# before they become an array.
_BATCH_TEXTS = 64
_BATCH_CHARACTERS = 1 << 18


def encode_documents(tokenizer: Tokenizer, texts: Iterable[str], *, threads: int | None = None) -> Iterator[np.ndarray]:
    """Yield the ids of each text followed by the end-of-turn id, in order, encoded on `threads` (None: all cores).

    Several small batches are in progress at once: while one is in the encoder's native code, which releases the GIL,
    the ids of another are converted to an array. The result does not depend on the number of threads.
    """
    workers = threads or os.cpu_count() or 1
    eot = np.array([tokenizer.special_token_ids()["eot"]], dtype=tokenizer.dtype)
    batches = (batch for batch, _ in grouped(texts, len, most=_BATCH_CHARACTERS, count=_BATCH_TEXTS))
    pending: deque[Future[list[np.ndarray]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        while True:
            while len(pending) <= workers and (batch := next(batches, None)):
                pending.append(pool.submit(tokenizer.encode_batch, batch))
            if not pending:
                return
            for ids in pending.popleft().result():
                yield np.concatenate((ids, eot))


def write_sft_files(
    folder: Path,
    splits: Mapping[str, Iterable[np.ndarray]],
    *,
    tokenizer: Tokenizer,
    T: int | None = None,
) -> dict[str, int]:
    """Write the token files of each split and return counts for meta.json.

    Examples without a supervised target within the first T+1 tokens (all, if T is None) are dropped and counted.
    """
    chat, totals = chat_renderer(tokenizer), dict[str, int]()
    for split, examples in splits.items():
        dropped = 0

        def kept(examples: Iterable[np.ndarray] = examples) -> Iterator[np.ndarray]:
            nonlocal dropped
            for ids in examples:
                window = ids if T is None else ids[: T + 1]
                if supervised(window[None], asst_id=chat.answer, eot_id=chat.end)[:, 1:].any():
                    yield ids
                else:
                    dropped += 1

        files = (folder / f"{split}_tokens.bin", folder / f"{split}_idx.npy")
        totals[f"{split}_examples"], totals[f"{split}_tokens"] = write_token_file(*files, kept(), dtype=tokenizer.dtype)
        totals[f"{split}_dropped"] = dropped
    return totals


def describe_chats(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the marks of an answer for a meta.json of chats; none where `special_token_ids` has them ("asst")."""
    if "asst" in tokenizer.special_token_ids():
        return {}
    chat = chat_renderer(tokenizer)
    return {ANSWER_IDS: {"begin": list(chat.answer), "end": chat.end}}


def describe_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokenizer's metadata for a cache's meta.json."""
    return {
        "token_dtype": f"{tokenizer.dtype.name}-le",
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
        "vocab_size": tokenizer.vocab_size,
        "special_token_ids": tokenizer.special_token_ids(),
    }


def encode_part(item: SplitPart, worker: Worker, *, packed: tuple[tuple[str, bytes], ...], tokens: Store) -> Record:
    """Write the part's token and offset files to the store `tokens` and return their record.

    `packed` has the tokenizer's files: (name, content). A split without rows in this part gets no files. The bytes
    depend on the part, the tokenizer and the split alone.
    """
    tokenizer = _unpacked(*packed)
    files: list[dict[str, Any]] = []
    counts: dict[str, dict[str, int]] = {}
    with item.reading() as (path, rows):
        for split in SPLITS:
            counts[split] = {"documents": 0, "tokens": 0}
            if not len(rows[split]):
                continue
            ids, idx = f"{split}/{item.name}.bin", f"{split}/{item.name}.idx.npy"
            with tokens.writing(ids) as ids_path, tokens.writing(idx) as idx_path:
                texts = _told(worker.tick, read_contents(path, rows[split]))
                documents = encode_documents(tokenizer, texts, threads=worker.threads)
                number, total = write_token_file(ids_path, idx_path, documents, dtype=tokenizer.dtype)
                counts[split] = {"documents": number, "tokens": total}
                files += [{"file": ids, **describe_file(ids_path)}, {"file": idx, **describe_file(idx_path)}]
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
    """Encode the parts of a source and return the "train" and "val" entries of its manifest.

    `budgets` limits the tokens of each split (None: no limit): parts are taken in order, and the last one is cut at the
    end of a document.
    """
    # Sent with each task, since a worker may be on another machine.
    packed = tuple((file.name, file.read_bytes()) for file in tokenizer_files(tokenizer))
    encode = partial(encode_part, packed=packed, tokens=tokens)

    def enough(records: Sequence[Record]) -> bool:
        return all(
            budget is not None and sum(record[split]["tokens"] for record in records) >= budget
            for split, budget in budgets.items()
        )

    records = make_parts(engine, encode, [*splits.by_part(texts)], store=tokens, enough=enough, say=say, tick=tick)
    return {split: _within(tokens, records, split, budgets[split]) for split in SPLITS}


def listed_names(counted: Mapping[str, Any]) -> set[str]:
    """Return the names of all token and offset files that `encode_parts` lists."""
    parts = [part for split in SPLITS for part in counted[split]["parts"]]
    return {file["file"] for part in parts for file in (part, part["offsets"])}


def _within(store: Store, records: Sequence[Record], split: str, budget: int | None) -> dict[str, Any]:
    """Return the manifest entry of a split: the files and counts within its token budget."""
    parts: list[dict[str, Any]] = []
    total = 0
    for record in records:
        tokens = record[split]["tokens"]
        if not tokens:
            continue
        ids, offsets = (file for file in record["files"] if file["file"].startswith(f"{split}/"))
        room = tokens if budget is None else budget - total
        counts = record[split]
        if tokens > room:
            with store.reading(offsets["file"]) as path:
                starts, lengths = read_offsets(path, tokens=tokens)
            documents = int(np.searchsorted(starts + lengths, room, side="right"))  # whole ones that fit
            counts = {"documents": documents, "tokens": int(lengths[:documents].sum())}
        if counts["tokens"]:
            parts.append({**ids, **counts, "offsets": offsets})
            total += counts["tokens"]
        if tokens > room:  # stop here, even if a short document of a later part would still fit
            break
    return {"tokens": total, "parts": parts}


def encode_chats(
    tokenizer: Tokenizer, texts: Texts, splits: Splits, *, budgets: Mapping[str, int | None]
) -> dict[str, Iterator[np.ndarray]]:
    """Return, for each split, an iterator over the ids of its chats, rendered with the chat tokens.

    `budgets` limits the tokens of each split (None: no limit); it ends before the first chat that exceeds its budget.
    """
    chat = chat_renderer(tokenizer)

    def rendered(name: str) -> Iterator[np.ndarray]:
        total, budget = 0, budgets[name]
        for part in splits.by_part(texts):
            with part.reading() as (path, rows):
                for batch in read_contents(path, rows[name]):
                    for messages in batch:
                        ids = np.array(chat.example(messages), dtype=tokenizer.dtype)
                        total += len(ids)
                        if budget is not None and total > budget:
                            return
                        yield ids

    return {name: rendered(name) for name in SPLITS}


def _told(tick: Callable[[int], object], batches: Iterator[list[str]]) -> Iterator[str]:
    """Yield the texts of the batches, reporting each batch's size to `tick`, in characters."""
    for batch in batches:
        yield from batch
        tick(sum(map(len, batch)))


@lru_cache(maxsize=2)
def _unpacked(*files: tuple[str, bytes]) -> Tokenizer:
    with tempfile.TemporaryDirectory(prefix="niels_gpt-") as folder:
        for name, data in files:
            Path(folder, name).write_bytes(data)
        return load_tokenizer(Path(folder, files[0][0]))
