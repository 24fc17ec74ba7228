"""Source kind `fineweb_edu`: FineWeb-Edu, streamed without downloading its 2 GB shards; a document is a web page."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from niels_gpt.data.streaming import StreamSettings, stream_documents, stream_samples, stream_slices
from niels_gpt.data.types import Document, PretrainSample, Request

KIND = "fineweb_edu"

DATASET = "HuggingFaceFW/fineweb-edu"
_COLUMNS = ("text", "id", "url", "score")


@dataclass(frozen=True)
class Settings(StreamSettings):
    config: Annotated[str, "config of the dataset, a crawl"] = "CC-MAIN-2024-10"


def documents(settings: Settings, request: Request) -> Iterator[Document]:
    """Yield one document per web page."""
    return stream_documents(_pages(settings, request), settings, request)


def slices(settings: Settings, request: Request, text_bytes: int) -> list[Request]:
    """Return one request per file of the dataset; [] if it cannot be read file by file."""
    return stream_slices(settings, request, name=settings.config)


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
) -> Iterator[PretrainSample]:
    """Yield at most `take` pages, by default shuffled with `seed`; `path` is a hub id, a folder or a file."""
    buffer = shuffle_buffer_size if shuffle else None
    settings = Settings(config=name, split=split, shuffle_buffer=buffer, seed=seed, max_documents=take)
    return _pages(settings, Request(path), streaming=streaming)


def _pages(settings: Settings, request: Request, *, streaming: bool = True) -> Iterator[PretrainSample]:
    known = request.path == DATASET or os.path.exists(request.path)
    columns = _COLUMNS if known else ()  # other datasets may lack them
    return stream_samples(settings, request, source=KIND, name=settings.config, columns=columns, streaming=streaming)


def select_text_field(sample: Mapping[str, Any]) -> str:
    """Return the field "text" if it is a string, else the first string field; raise a ValueError if there is none."""
    for value in (sample.get("text"), *sample.values()):
        if isinstance(value, str):
            return value
    raise ValueError(f"no field of this row is text; its keys are {sorted(sample)}")
