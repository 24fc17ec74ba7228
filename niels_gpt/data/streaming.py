"""Streamed hub datasets: read file by file or through a shuffle buffer, up to a row limit or token budget."""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Lt

from niels_gpt.data import hub
from niels_gpt.data.readers.tables import TextColumn
from niels_gpt.data.types import Count, Document, PretrainSample, Request, Seed, up_to
from niels_gpt.files.messages import say_above_bar


@dataclass(frozen=True)
class StreamSettings(hub.HubSettings):
    """Parameters of every streamed source kind."""

    streamed: ClassVar[bool] = True

    split: Annotated[str, "split of the dataset that is read"] = "train"
    shuffle_buffer: Annotated[
        Annotated[int, Ge(1)] | None, "rows held to shuffle among; null keeps the dataset's order"
    ] = 10_000
    seed: Annotated[Seed, "seed of the shuffle"] = 42
    max_documents: Annotated[Count | None, "documents read at most; null sets no bound"] = None
    bytes_per_token: Annotated[float, Ge(1), Lt(math.inf), "bytes of text fetched for each token of the budgets"] = 5.0


def stream_documents(
    samples: Iterator[PretrainSample], settings: StreamSettings, request: Request
) -> Iterator[Document]:
    """Yield samples as documents until there is text for the token budget, estimated by `bytes_per_token`."""
    wanted = math.inf if request.max_tokens is None else request.max_tokens * settings.bytes_per_token
    file = f"{Path(request.files[0]).name}:" if request.files else ""
    rows = (Document(str(sample.meta.get("id", f"{file}{i}")), sample.text) for i, sample in enumerate(samples))
    return up_to(wanted, rows)


def stream_slices(settings: StreamSettings, request: Request, *, name: str | None = None) -> list[Request]:
    """Return one request per file of the dataset; [] if it has to be read as a single stream.

    That is so if it is shuffled, limited or a single file, if it comes from the cache, which holds rows and not
    the original files, or if some files have a format that cannot be opened alone.
    """
    import datasets

    path, limits = request.path, (settings.shuffle_buffer, settings.max_documents, request.max_tokens)
    if any(limit is not None for limit in limits) or Path(path).is_file():
        return []
    if os.path.exists(path):
        name = name if (Path(path) / "README.md").is_file() else None
    elif hub.is_offline():
        return []
    else:
        hub.check_reachable(path)
    builder = hub.retried(
        lambda: datasets.load_dataset_builder(path, name, revision=request.revision), path=path, name=name
    )
    files = list(map(str, (builder.config.data_files or {}).get(settings.split, [])))
    return [replace(request, files=(file,)) for file in files] if all(map(hub.builder_of, files)) else []


def stream_samples(
    settings: StreamSettings,
    request: Request,
    *,
    source: str,
    name: str | None = None,
    columns: Sequence[str] = (),
    streaming: bool = True,
) -> Iterator[PretrainSample]:
    """Yield the rows of config `name` of the dataset as samples of the kind `source`, shuffled as `settings` say."""
    path, files = request.path, request.files

    def open_rows() -> Iterable[Any]:
        parquet = parquet_options(path, columns=columns) if not files or files[0].endswith(".parquet") else {}
        of: dict[str, Any] = {"split": settings.split, "streaming": streaming, "revision": request.revision}
        rows = hub.load_dataset(path, name, files=files, **of, **parquet)
        if settings.shuffle_buffer is None:
            return rows
        # Reads one shard at a time: with 10 at once, the library's default, `take(5)` fetched 899 MB of ten 100 MB
        # shards; with one, 58 MB.
        one_by_one = {"buffer_size": settings.shuffle_buffer, "max_buffer_input_shards": 1}
        return rows.shuffle(seed=settings.seed, **(one_by_one if streaming else {}))

    column, blank = TextColumn(), 0
    rows = hub.stream_rows(open_rows, path=path, name=name, take=settings.max_documents, patience_s=request.patience_s)
    for number, row in enumerate(rows):
        text, field = column.read(row, place=f"{path}, row {number}")
        if number == 0 and field != "text":
            say_above_bar(f"  {path} has no column text: its column {field!r} is read")
        blank += not text.strip()
        meta = {key: value for key, value in row.items() if value is not None and value is not text}
        yield PretrainSample(text=text, source=source, meta=meta)
    if blank:
        say_above_bar(f"  {path}: rows without text are skipped: {blank:,}")


def parquet_options(path: str, *, columns: Sequence[str] = ()) -> dict[str, Any]:
    """Return the options that keep the memory of a parquet stream flat; {} if local files are not parquet.

    With pre-buffering, Arrow keeps every range it fetched until the file is closed: +2.2 GB on a 1 GB shard. Without
    it, and with only the needed columns, it is +0.16 GB. `columns` must exist in a hub dataset; of local files, the
    existing ones are read, or all columns if the first of `columns` is missing.
    """
    import pyarrow.dataset
    import pyarrow.parquet

    found = list(columns)
    if os.path.exists(path):
        files = [Path(path)] if Path(path).is_file() else sorted(Path(path).rglob("*.parquet"))
        if not files or files[0].suffix != ".parquet":
            return {}
        names = pyarrow.parquet.read_schema(files[0]).names
        found = [name for name in columns if name in names] if columns and columns[0] in names else []
    options = {"fragment_scan_options": pyarrow.dataset.ParquetFragmentScanOptions(pre_buffer=False)}
    return {**options, "columns": found} if found else options
