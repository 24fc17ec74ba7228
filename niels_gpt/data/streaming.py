"""Streamed hub datasets: read file by file or through a shuffle buffer, up to a row limit or token budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Lt

from niels_gpt.data.hub import (
    PATIENCE_S,
    HubError,
    HubSettings,
    builder_of,
    check_reachable,
    count_reads,
    explain,
    is_local,
    is_offline,
    retried,
    stream_rows,
)
from niels_gpt.data.readers.tables import TextColumn, small_fields
from niels_gpt.data.types import Document, PretrainSample, Request
from niels_gpt.files.messages import say_above_bar


@dataclass(frozen=True)
class StreamSettings(HubSettings):
    """Parameters of every streamed source kind."""

    splits: ClassVar[tuple[str, ...]] = ("document",)
    streamed: ClassVar[bool] = True

    split: Annotated[str, "split of the dataset that is read"] = "train"
    shuffle_buffer: Annotated[
        Annotated[int, Ge(1)] | None, "rows held to shuffle among; null keeps the dataset's order"
    ] = 10_000
    seed: Annotated[int, Ge(0), Lt(2**63), "seed of the shuffle"] = 42
    max_documents: Annotated[Annotated[int, Ge(1), Lt(2**63)] | None, "documents read at most; null sets no bound"] = (
        None
    )
    bytes_per_token: Annotated[float, Ge(1), Lt(math.inf), "bytes of text fetched for each token of the budgets"] = 5.0


def stream_documents(
    iterate: Callable[..., Iterator[PretrainSample]], settings: StreamSettings, request: Request, **options: Any
) -> Iterator[Document]:
    """Yield documents from the loader `iterate` until there is text for the token budget.

    The text needed is estimated as `max_tokens` times `bytes_per_token` bytes.
    """
    samples = iterate(
        split=settings.split,
        shuffle=settings.shuffle_buffer is not None,
        shuffle_buffer_size=settings.shuffle_buffer or 1,
        seed=settings.seed,
        take=settings.max_documents,
        request=request,
        **options,
    )
    wanted = math.inf if request.max_tokens is None else request.max_tokens * settings.bytes_per_token
    fetched = 0
    for i, sample in enumerate(samples):
        place = f"{Path(request.files[0]).name}:{i}" if request.files else str(i)
        document = Document(id=str(sample.meta.get("id", place)), text=sample.text)
        yield document
        fetched += document.bytes()
        if fetched >= wanted:
            return


def stream_slices(settings: StreamSettings, request: Request, *, split: str, name: str | None = None) -> list[Request]:
    """Return one request per file of the dataset; [] if it has to be read as a single stream.

    That is so if it is shuffled or limited, if it comes from the cache, which holds rows and not the original files,
    or if some files have a format that cannot be opened alone.
    """
    import datasets

    path = request.path
    if settings.shuffle_buffer is not None or settings.max_documents is not None or request.max_tokens is not None:
        return []
    options = {}
    if is_local(path):
        name = name if (Path(path) / "README.md").is_file() else None
    elif is_offline():
        return []
    else:
        check_reachable(path)
        options = {"revision": request.revision}
    builder = retried(lambda: datasets.load_dataset_builder(path, name, **options), path=path, name=name)
    files = list(map(str, (builder.config.data_files or {}).get(split, [])))
    return [replace(request, files=(file,)) for file in files] if all(map(builder_of, files)) else []


def stream_samples(
    load: Callable[..., Any],
    path: str,
    *,
    source: str,
    name: str | None = None,
    columns: Sequence[str] = (),
    split: str,
    streaming: bool,
    shuffle_buffer: int | None,
    seed: int,
    take: int | None,
    request: Request | None,
) -> Iterator[PretrainSample]:
    """Yield at most `take` rows of the dataset that `load` opens, as samples.

    Rows are shuffled with `seed` through a buffer of `shuffle_buffer` rows; None keeps the dataset's order. `request`
    has the revision, the patience and, if only some files are read, in order, their names.
    """
    request = request or Request(path, None, max_tokens=None, patience_s=PATIENCE_S)
    files, revision = request.files, request.revision
    options = ({"name": name} if name else {}) | ({"revision": revision} if revision else {})

    def open_rows() -> Iterable[Any]:
        parquet = parquet_options(path, columns=columns)
        if files is not None:
            import datasets

            of_files: dict[str, Any] = {"data_files": list(files), "split": "train", "streaming": True}
            of_files |= parquet if files[0].endswith(".parquet") else {}
            count_reads()
            return retried(lambda: datasets.load_dataset(builder_of(files[0]), **of_files), path=path)
        rows = load(path, split=split, streaming=streaming, **options, **parquet)
        if shuffle_buffer is None:
            return rows
        # Reads one shard at a time: with 10 at once, the library's default, `take(5)` fetched 899 MB of ten 100 MB
        # shards; with one, 58 MB.
        one_by_one = {"buffer_size": shuffle_buffer, "max_buffer_input_shards": 1}
        return rows.shuffle(seed=seed, **(one_by_one if streaming else {}))

    column, blank = TextColumn(), 0
    for number, row in enumerate(
        stream_rows(open_rows, path=path, name=name, take=take, patience_s=request.patience_s)
    ):
        text, field = column.read(row, place=f"{path}, row {number}")
        if number == 0 and field != "text":
            say_above_bar(f"  {path} has no column text: its column {field!r} is read")
        blank += not text.strip()
        yield PretrainSample(text=text, source=source, meta=small_fields(row, text=text))
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
    if is_local(path):
        files = [Path(path)] if Path(path).is_file() else sorted(Path(path).rglob("*.parquet"))
        if not files or files[0].suffix != ".parquet":
            return {}
        try:
            names = pyarrow.parquet.read_schema(files[0]).names
        except (pyarrow.ArrowException, OSError) as error:
            raise HubError(explain(error, path=path)) from error
        found = [name for name in columns if name in names] if columns and columns[0] in names else []
    options = {"fragment_scan_options": pyarrow.dataset.ParquetFragmentScanOptions(pre_buffer=False)}
    return {**options, "columns": found} if found else options
