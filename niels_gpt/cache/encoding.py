"""Tokenizing text and chats to files: the parts that the pipeline's stages and the cache builders share."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPE, TOKEN_DTYPE_NAME, write_token_file
from niels_gpt.cache.sft_mask import supervised
from niels_gpt.tokenizer.folder import tokenizer_sha256
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
