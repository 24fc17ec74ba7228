"""Access to Hugging Face datasets: load and stream with prefetch, retries, timeouts and readable errors.

The `datasets` library retries some requests for half an hour and others not at all, and a stream that is left before
its end can crash the interpreter at exit. Measurements are given beside the code that deals with each problem.
"""

import atexit
import os
import queue
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from niels_gpt.data.readers.tables import find_damage
from niels_gpt.data.types import PATIENCE_S, Settings

ATTEMPTS = 4  # of a call or stream, with pauses of 1, 2 and 4 s between them
_CHUNK_ROWS = 64  # rows per item of the prefetch queue
_TRANSIENT_STATUS = {408, 429, 500, 502, 503, 504}  # HTTP statuses worth a retry
_BUILDERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".txt": "text", ".csv": "csv"}


class HubError(RuntimeError):
    """Failure to load a dataset; the message says which one, what happened and what to do."""


@dataclass(frozen=True)
class HubSettings(Settings):
    """Parameters of every source kind that loads from the hub."""

    dataset: Annotated[str | None, "id of a hub dataset; null reads the source's file or folder"] = None
    revision: Annotated[str | None, "commit of the dataset, the full sha; null takes the newest"] = None


def load_dataset(path: str, name: str | None = None, *, files: Sequence[str] | None = None, **options: Any) -> Any:
    """Call `datasets.load_dataset` for a hub id, or for a local folder or file instead, or for some `files` of them.

    Files have a single split, so the requested one is ignored; a folder without a README.md has no named configs, so
    `name` is ignored. Transient failures are retried; other failures, and the last retry, raise a HubError.
    """
    # Imported here because training does not need it. Looking up parquet exports would query a second host in vain.
    import datasets

    datasets.config.USE_PARQUET_EXPORT = False
    # To avoid a hang at exit the library sleeps 5 s after every shuffled stream; `outlast_reads` replaces that.
    datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
    if "torch" not in sys.modules:  # else the first stream imports it (2 s, 180 MB), only to query worker info
        datasets.config.TORCH_AVAILABLE = False
    source, config = path, name
    if files is None and Path(path).is_file():
        files = [path]
    if files is not None:
        builder = builder_of(files[0])
        if builder is None:
            raise HubError(f"{path} is no dataset file: {', '.join(sorted(_BUILDERS))} can be read")
        path, name, options = builder, None, {**options, "data_files": list(files), "split": "train", "revision": None}
    elif os.path.exists(path):
        name = name if (Path(path) / "README.md").is_file() else None
        options.pop("revision", None)
    elif is_offline():
        _check_cached(path, name, options.get("revision"))
        # These options are part of a build's cache key: with them, the cached build would not be found.
        options = {key: value for key, value in options.items() if key not in ("columns", "fragment_scan_options")}
    else:
        check_reachable(path)
    if options.get("streaming"):
        outlast_reads()
    return retried(lambda: datasets.load_dataset(path, name, **options), path=source, name=config)


def builder_of(file: str) -> str | None:
    """Return the name of the `datasets` builder for a file's suffix; None if there is none."""
    return _BUILDERS.get(Path(file.removesuffix(".gz")).suffix)


def load_rows(path: str, **options: Any) -> Any:
    """Return all rows of a small dataset, indexable; local files are read directly, not copied into the cache."""
    if not os.path.exists(path):
        return load_dataset(path, **options)
    return list(explained(load_dataset(path, streaming=True, **options), path=path))


def explained(rows: Iterable[Any], *, path: str, name: str | None = None) -> Iterator[Any]:
    """Yield the rows; turn any exception into a HubError."""
    try:
        yield from _iterate(rows)
    except Exception as error:
        raise HubError(explain(error, path=path, name=name)) from error


def stream_rows(
    open_rows: Callable[[], Iterable[Any]],
    *,
    path: str,
    name: str | None = None,
    take: int | None = None,
    patience_s: float = PATIENCE_S,
) -> Iterator[Any]:
    """Yield the first `take` rows of `open_rows()`, each once and in order, across transient failures.

    The order of a seeded stream is deterministic, so after a failure it is reopened and the rows already yielded are
    skipped. This is exact for shuffled streams, too, where the library's own resume loses rows. A thread does the
    reading, because a stalled read (up to 28 minutes) cannot be interrupted, only abandoned after `patience_s` seconds
    without data. The thread prefetches, but never past `take`.
    """
    given = 0
    what = _title(path, name)
    for attempt in count():
        try:
            for chunk in _read_ahead(open_rows, skip=given, take=take, patience_s=patience_s, what=what):
                for row in chunk:
                    given += 1
                    yield row
            return
        except Exception as error:
            _wait_or_give_up(error, attempt, path, name)


def retried(call: Callable[[], Any], *, path: str, name: str | None = None, what: str = "dataset") -> Any:
    """Return `call()`, retrying transient failures with exponential backoff; raise a HubError if it fails."""
    for attempt in count():
        try:
            return call()
        except Exception as error:
            _wait_or_give_up(error, attempt, path, name, what)


def _wait_or_give_up(error: Exception, attempt: int, path: str, name: str | None, what: str = "dataset") -> None:
    # A HubError is final: what raised it has had its own retries, or its patience.
    if attempt + 1 == ATTEMPTS or isinstance(error, HubError) or not is_transient(error):
        raise HubError(explain(error, path=path, name=name, what=what)) from error
    time.sleep(2.0**attempt)


def resolve_revision(path: str, revision: str | None, *, name: str | None = None) -> str | None:
    """Return the commit that a revision (None: the newest) refers to now; None for local data.

    Offline, return the commit of config `name` in the local cache; raise a HubError if it is missing or another one.
    """
    if os.path.exists(path):
        return None
    if is_offline():
        return _check_cached(path, name, revision)
    check_reachable(path)
    from huggingface_hub import HfApi

    return str(retried(lambda: HfApi().dataset_info(path, revision=revision).sha, path=path))


def cached_commit(path: str, name: str | None = None) -> str | None:
    """Return the commit of a dataset that is completely in the local cache; None if it is not, or when online."""
    import datasets

    try:
        # Offline, the builder uses whatever the cache has, regardless of the requested revision.
        return str(datasets.load_dataset_builder(path, name).hash) if is_offline() else None
    except Exception:  # the library raises many different types if nothing is cached
        return None


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE was set when `datasets` was imported."""
    import datasets

    return bool(datasets.config.HF_HUB_OFFLINE)


def _check_cached(path: str, name: str | None, revision: str | None) -> str:
    commit = cached_commit(path, name)
    if commit is None:
        raise HubError(
            f"{_title(path, name)} is not in the local cache, and HF_HUB_OFFLINE is set: unset it, or put a copy in a "
            f"folder and read that instead of {path}"
        )
    if revision not in (None, commit):
        raise HubError(
            f"{_title(path, name)}: the local cache has commit {commit}, not {revision}, and HF_HUB_OFFLINE is set: "
            "unset it, or ask for that commit"
        )
    return commit


def check_reachable(path: str) -> None:
    """Raise a HubError if the hub cannot be reached."""
    if reason := why_unreachable():
        raise HubError(
            f"{path}: {reason}: check the network, set HF_HUB_OFFLINE=1 to use what was loaded before, or put a copy "
            f"in a folder and read that instead of {path}"
        )


def why_unreachable() -> str | None:
    """Return why the hub cannot be reached, within seconds (the client takes 23 s or more); None if it can be."""
    from huggingface_hub import constants

    if getproxies().keys() & {"http", "https", "all"}:
        return None  # behind a proxy, a direct connection proves nothing
    url = urlsplit(constants.ENDPOINT)
    for pause in (1.0, 0.0):
        try:
            port = url.port or (443 if url.scheme == "https" else 80)
            socket.create_connection((url.hostname or "", port), timeout=4).close()
            return None
        except (OSError, ValueError) as error:  # ValueError: the port is not a number
            reason = getattr(error, "strerror", None) or str(error)
            time.sleep(pause)
    return f"the hub at {constants.ENDPOINT} cannot be reached ({reason})"


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed a little later."""
    chain = _chain(error)
    statuses = [status for e in chain if (status := _status(e)) is not None]
    if statuses:
        return all(status in _TRANSIENT_STATUS for status in statuses)
    return any(
        (isinstance(e, ConnectionError | TimeoutError) and type(e).__name__ != "OfflineModeIsEnabled")
        or type(e).__module__.split(".")[0].rstrip("2") in ("httpx", "httpcore")
        or (isinstance(e, FileNotFoundError) and "LocalEntryNotFoundError" in str(e))
        for e in chain
    )


def explain(error: BaseException, *, path: str, name: str | None = None, what: str = "dataset") -> str:  # noqa: PLR0911
    """Return a one-sentence message: the dataset (or `what`), the file if known, what happened and what to do."""
    if isinstance(error, HubError):
        return str(error)
    chain = _chain(error)
    text = " ".join(" ".join(str(e) for e in chain).split())
    file = re.search(r"/resolve/[^/\s]+/([^\s'\"?),]+)", text) or re.search(r"@[0-9a-f]{40}/([^\s'\"?),]+)", text)
    title = _title(path, name, what)
    where = f"{title}, file {file[1].rstrip('.')}" if file and not file[1].endswith("README.md") else title
    status = next((s for e in chain if (s := _status(e)) is not None), None)
    names = {type(e).__name__ for e in chain}
    if "gated dataset" in text or names & {"GatedRepoError"} or status == 401:
        return f"{where}: it is gated or private: accept its terms on its page, then `hf auth login`"
    if "Revision" in text and names & {"DatasetNotFoundError", "RevisionNotFoundError"}:
        return f"{where}: it has no such revision: give the full sha of one of its commits, in quotes"
    if names & {"DatasetNotFoundError", "RepositoryNotFoundError"}:
        return f"{where}: there is no such {what}: check the id (renamed?); if it is private, `hf auth login`"
    if "BuilderConfig" in text or "Bad split" in text or "Unknown split" in text:
        return f"{where}: {str(error).strip().rstrip('.')}"
    if os.path.exists(path) and (damage := find_damage(path)):
        return damage
    if is_transient(error):
        happened = f"answered {status}" if status else f"failed ({type(error).__name__})"
        return f"{where}: the hub {happened} {ATTEMPTS} times in a row: try again later, or read a copy in a folder"
    if status == 404 or names & {"EntryNotFoundError", "RemoteEntryNotFoundError"}:
        return f"{where}: the hub does not have it (404): has the {what} changed? pin another revision"
    if status:
        return f"{where}: the hub answered {status}"
    return f"{where}: {type(error).__name__}: {text[:300]}"


def _read_ahead(
    open_rows: Callable[[], Iterable[Any]], *, skip: int, take: int | None, patience_s: float, what: str
) -> Iterator[list[Any]]:
    """Yield lists of the rows `skip` to `take`, read on a thread; raise a HubError after `patience_s` s of nothing."""
    items: queue.Queue[list[Any] | BaseException] = queue.Queue(maxsize=8)
    stopped = threading.Event()

    def put(item: list[Any] | BaseException) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                items.put(item, timeout=0.1)
                return

    def read() -> None:
        try:
            rows = islice(_iterate(open_rows()), skip, take)
            while (chunk := list(islice(rows, _CHUNK_ROWS))) and not stopped.is_set():
                put(chunk)
            put([])  # the end
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        while item := items.get(timeout=patience_s):
            if isinstance(item, BaseException):
                raise item
            yield item
    except queue.Empty:
        remedy = "check the network and try again, or read a copy in a folder"
        raise HubError(f"{what}: nothing came for {patience_s:g} s: {remedy}") from None
    finally:
        stopped.set()
        thread.join(timeout=2.0)


def _iterate(rows: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows of a dataset from Arrow batches: same rows, same order, 5 times as fast as row by row."""
    if not hasattr(rows, "with_format"):
        yield from rows
        return
    for batch in rows.with_format("arrow").iter(batch_size=_CHUNK_ROWS):
        yield from batch.to_pylist()


@cache
def outlast_reads() -> None:
    """Have the interpreter wait at exit, 10 s at most, until Arrow's threads are idle (apache/arrow 45214).

    An interpreter that exits while those threads work crashes or hangs. With 150 ms of latency this happened to 12 of
    12 processes that left a stream early, to 3 of 4 that waited for the reads to end, and to none that then waited
    another 0.5 s.
    """
    from huggingface_hub.hf_file_system import HfFileSystemFile

    read = HfFileSystemFile.read
    in_flight: list[None] = []  # an entry for each read: appending and popping are atomic
    last_end = 0.0

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal last_end
        in_flight.append(None)
        try:
            return read(self, *args, **kwargs)
        finally:
            last_end = time.monotonic()
            in_flight.pop()

    def wait() -> None:
        deadline = time.monotonic() + 10.0
        while (in_flight or time.monotonic() < last_end + 0.5) and time.monotonic() < deadline:
            time.sleep(0.02)

    HfFileSystemFile.read = counted  # type: ignore[method-assign]
    atexit.register(wait)


def _title(path: str, name: str | None, what: str = "dataset") -> str:
    return f"{what} {path}" + (f" (config {name})" if name else "")


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return chain


def _status(error: BaseException) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None
