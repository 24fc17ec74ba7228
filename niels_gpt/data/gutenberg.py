"""Source kind `gutenberg`: Project Gutenberg, streamed from either of two hub datasets; a document is a book."""

from collections.abc import Iterator
from dataclasses import replace

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
    return stream_documents(_books(settings, request), settings, request)


def slices(settings: Settings, request: Request, text_bytes: int) -> list[Request]:
    """Return one request per file of the dataset; [] if it cannot be read file by file."""
    return stream_slices(_of_dataset(settings, request.path), request)


def iter_gutenberg(
    *,
    dataset_id: str = DATASET,
    split: str = "train",
    streaming: bool = True,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10_000,
    seed: int = 42,
    take: int | None = None,
) -> Iterator[PretrainSample]:
    """Yield at most `take` books, by default shuffled with `seed`; `dataset_id` may also be a folder or a file."""
    buffer = shuffle_buffer_size if shuffle else None
    settings = Settings(split=split, shuffle_buffer=buffer, seed=seed, max_documents=take)
    return _books(settings, Request(dataset_id), streaming=streaming)


def _books(settings: Settings, request: Request, *, streaming: bool = True) -> Iterator[PretrainSample]:
    """Yield the books; a stream is shuffled through at most `MAX_BUFFERED_BOOKS`, and a message says so."""
    settings = _of_dataset(settings, request.path)
    if streaming and (settings.shuffle_buffer or 0) > MAX_BUFFERED_BOOKS:
        say_above_bar(
            f"  {request.path}: books are shuffled {MAX_BUFFERED_BOOKS} at a time, not {settings.shuffle_buffer:,}, "
            "which do not fit into memory"
        )
        settings = replace(settings, shuffle_buffer=MAX_BUFFERED_BOOKS)
    yield from stream_samples(settings, request, source=KIND, streaming=streaming)


def _of_dataset(settings: Settings, dataset: str) -> Settings:
    """Return the settings with the name of the split in this dataset: `RAW_DATASET` is split by language."""
    return replace(settings, split="en") if dataset == RAW_DATASET and settings.split == "train" else settings
