"""FineWeb-Edu, streamed: 2 GB shards are never downloaded whole, nor held. A document is a web page."""

from __future__ import annotations

from collections.abc import Iterator

from niels_gpt.data.fields import select_text_field, small_fields
from niels_gpt.data.hub import PATIENCE_S, is_local, load_dataset, parquet_options, shuffled, stream_rows
from niels_gpt.data.types import PretrainSample

KIND = "fineweb_edu"

__all__ = ["iter_fineweb_edu", "select_text_field"]

DATASET = "HuggingFaceFW/fineweb-edu"
_COLUMNS = ("text", "id", "url", "score")


def iter_fineweb_edu(
    *,
    name: str = "CC-MAIN-2024-10",
    split: str = "train",
    streaming: bool = True,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10_000,
    seed: int = 42,
    take: int | None = None,
    path: str = DATASET,
    revision: str | None = None,
    patience_s: float = PATIENCE_S,
) -> Iterator[PretrainSample]:
    """Pages in a seeded order, at most `take`. `path` may name a folder or file in the place of the hub id."""

    def open_rows():  # type: ignore[no-untyped-def]
        options = {"revision": revision} if revision else {}
        columns = _COLUMNS if path == DATASET or is_local(path) else ()
        parquet = parquet_options(path, columns=columns)
        rows = load_dataset(path, name=name, split=split, streaming=streaming, **options, **parquet)
        if shuffle:
            rows = shuffled(rows, seed=seed, buffer_size=shuffle_buffer_size) if streaming else rows.shuffle(seed=seed)
        return rows

    for row in stream_rows(open_rows, path=path, name=name, take=take, patience_s=patience_s):
        text = select_text_field(row)
        yield PretrainSample(text=text, source="fineweb_edu", meta=small_fields(row, text=text))
