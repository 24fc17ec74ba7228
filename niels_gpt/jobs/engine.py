"""Interface of the engines that process the parts of a source in parallel, and done-records of finished parts.

The output of a part is a function of that part alone and is published atomically. So the bytes depend neither on the
engine, nor on the number of workers, the order of parts, or retries.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from niels_gpt.files.atomic import json_text
from niels_gpt.files.store import Store

TRIES = 3  # attempts at a part whose worker died or met a transient error


class Item(Protocol):
    """Task description of one part: any picklable object with a unique name."""

    @property
    def name(self) -> str: ...


I = TypeVar("I", bound=Item)  # noqa: E741
R = TypeVar("R")


@dataclass(frozen=True)
class Worker:
    """Resources of a task: threads it may use, and a progress callback (bytes done since the last call)."""

    threads: int = 1
    tick: Callable[[int], object] = bool


Function = Callable[[I, Worker], R]


class Engine(Protocol):
    """Executor that applies one function to many items, on this machine or a cluster."""

    def map(
        self, function: Function[I, R], items: Iterable[I], *, tick: Callable[[int], object]
    ) -> Iterator[tuple[I, R]]:
        """Yield (item, function(item, worker)) in order of completion.

        Items are requested only when a worker is free, so the iterable may end early. Closing the generator stops
        running tasks. `tick` is called with the bytes done.
        """
        ...


def call(function: Function[I, R], item: I) -> tuple[R, int]:
    """Run the function in a worker process; return its result and the bytes it processed."""
    seen: list[int] = []
    return function(item, Worker(tick=seen.append)), sum(seen)


def check_tries(item: Item, fault: BaseException | str, tries: int) -> None:
    """Raise if a failed part must not be retried: after a ValueError (bad input), or after `TRIES` attempts."""
    if isinstance(fault, ValueError):
        raise fault
    if tries == TRIES:
        raise RuntimeError(f"{item.name} failed {TRIES} times; the last time: {fault}")


# Done-records: one JSON file per part, written after all of the part's files. They alone say which parts are done: a
# listing of the store could contain files of an unfinished part.

_TELL_EVERY_S = 60
Record = dict[str, Any]  # "files" lists the part's output: file, bytes and sha256 of each


@dataclass(frozen=True)
class _Recorded:
    """Wrapper of a part function that writes its done-record to the store once all its files are there."""

    function: Callable[[Any, Worker], Record]
    store: Store

    def __call__(self, item: Item, worker: Worker) -> Record:
        record = self.function(item, worker)
        write_record(self.store, item.name, record)
        return record


def make_parts(
    engine: Engine,
    function: Function[I, Record],
    items: Sequence[I],
    *,
    store: Store,
    enough: Callable[[Sequence[Record]], bool] = lambda records: False,
    say: Callable[[str], object] = bool,
    tick: Callable[[int], object] = bool,
) -> list[Record]:
    """Return the records of all items in order, running `function` only for items without one.

    `enough(records)` may end the work early: the result is then the shortest prefix of items for which it is true.
    `say` gets progress messages, `tick` the bytes done.
    """
    store.sweep()
    known = {item.name: record for item in items if (record := read_record(store, item.name)) is not None}

    first: list[Record] = []  # records of the longest prefix of finished items; grown in place, since it may be long

    def are_enough() -> bool:
        for item in items[len(first) :]:
            if item.name not in known:
                return False
            first.append(known[item.name])
            if enough(first):
                return True
        return False

    def missing() -> Iterator[I]:
        for item in items:
            if item.name in known:
                continue
            if are_enough():
                return
            yield item

    if len(items) > 1 or known:
        say(f"{len(items) - len(known):,} of {len(items):,} parts to do")
    told = time.monotonic()
    for item, record in engine.map(_Recorded(function, store), missing(), tick=tick):
        known[item.name] = record
        if time.monotonic() - told > _TELL_EVERY_S:
            told = time.monotonic()
            say(f"{len(known):,} of {len(items):,} parts done")
    store.sweep()
    return _read_back(items, store, enough)


def _read_back(items: Sequence[I], store: Store, enough: Callable[[Sequence[Record]], bool]) -> list[Record]:
    """Read the items' records from the store, up to `enough`; raise a RuntimeError if one is missing."""
    records: list[Record] = []
    for item in items:
        if enough(records):
            break
        record = read_record(store, item.name)
        if record is None:
            raise RuntimeError(
                f"{store.place(_file(item.name))}, the record that the part is done, is missing: run again"
            )
        records.append(record)
    return records


def write_record(store: Store, name: str, record: Record) -> None:
    """Write the done-record of the part `name`."""
    with store.writing(_file(name)) as path:
        path.write_text(json_text(record), encoding="utf-8")


def read_record(store: Store, name: str) -> Record | None:
    """Return the record of a part; None if it is not done or a file it lists is missing or of another size."""
    data = store.read(_file(name))
    if data is None:
        return None
    try:
        record = json.loads(data)
        whole = all(store.size(file["file"]) == file["bytes"] for file in record["files"])
    except (ValueError, TypeError, LookupError):
        return None
    return record if whole else None


def _file(name: str) -> str:
    return f"done/{name}.json"
