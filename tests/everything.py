"""Text in the files of a folder, however it is encoded or compressed, for tests that search for a string."""

import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from niels_gpt.cache.formats import TOKEN_DTYPE
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.tokenizer.vocabulary import Tokenizer


def texts_in(path: Path, tokenizer: Path) -> Iterator[str]:
    """Yield the text of a file: its raw bytes, zlib-decompressed, the cells of a Parquet table, decoded token ids."""
    data = path.read_bytes()
    yield data.decode("utf-8", errors="replace")
    if data[:1] == b"\x78":  # zlib header, as of a git object
        yield zlib.decompress(data).decode("utf-8", errors="replace")
    if data[:4] == b"PAR1":
        for row in pq.read_table(path).to_pylist():
            yield from _strings(row)
    ids = np.frombuffer(data[: len(data) // 2 * 2], TOKEN_DTYPE) if TOKEN_DTYPE.itemsize == 2 else None
    chosen = _loaded(tokenizer, max(file.stat().st_mtime_ns for file in tokenizer.iterdir()))
    if ids is not None and len(ids) and int(ids.max()) < chosen.vocab_size:
        special = set(chosen.special_token_ids().values())
        yield chosen.decode([int(i) for i in ids if int(i) not in special])


@lru_cache(maxsize=1)
def _loaded(tokenizer: Path, changed: int) -> Tokenizer:
    return load_tokenizer(tokenizer)


def files_in(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
