"""Source kind `gutenberg`: Project Gutenberg, streamed from either of two hub datasets; a document is a book."""

from __future__ import annotations

from collections.abc import Iterator

from niels_gpt.data.hub import load_dataset
from niels_gpt.data.streaming import StreamSettings as Settings
from niels_gpt.data.streaming import stream_documents, stream_samples, stream_slices
from niels_gpt.data.types import Document, PretrainSample, Request
from niels_gpt.files.messages import say_above_bar

KIND = "gutenberg"

DATASET = "nikolina-p/gutenberg_clean_en_splits"
RAW_DATASET = "manu/project_gutenberg"
# At 400 KB per book, a buffer of 10,000 overflows Arrow's 2 GiB string arrays, and one of 1,000 takes 4.8 GB.
MAX_BUFFERED_BOOKS = 100


def documents(settings: Settings, request: Request) -> Iterator[Document]:
    """Yield one document per book."""
    return stream_documents(iter_gutenberg, settings, request, dataset_id=request.path)


def slices(settings: Settings, request: Request, text_bytes: int) -> list[Request]:
    """Return one request per file of the dataset; [] if it cannot be read file by file."""
    return stream_slices(settings, request, split=_split(request.path, settings.split))


def iter_gutenberg(
    *,
    dataset_id: str = DATASET,
    split: str = "train",
    streaming: bool = True,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10_000,
    seed: int = 42,
    take: int | None = None,
    request: Request | None = None,
) -> Iterator[PretrainSample]:
    """Yield at most `take` books, by default shuffled with `seed`.

    `RAW_DATASET` is split by language, so "train" means its split "en". The shuffle buffer of a stream is limited to
    `MAX_BUFFERED_BOOKS`; a message says so if more is requested.
    """
    if shuffle and streaming and shuffle_buffer_size > MAX_BUFFERED_BOOKS:
        say_above_bar(
            f"  {dataset_id}: books are shuffled {MAX_BUFFERED_BOOKS} at a time, not {shuffle_buffer_size:,}, which "
            "do not fit into memory"
        )
    yield from stream_samples(
        load_dataset,
        dataset_id,
        source=KIND,
        split=_split(dataset_id, split),
        streaming=streaming,
        shuffle_buffer=min(shuffle_buffer_size, MAX_BUFFERED_BOOKS) if shuffle else None,
        seed=seed,
        take=take,
        request=request,
    )


def _split(dataset_id: str, split: str) -> str:
    return "en" if dataset_id == RAW_DATASET and split == "train" else split
