"""Work over the parts of a source: what an engine is, and records of the parts that are done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from niels_gpt.files.atomic import json_text
from niels_gpt.files.store import Store

# Engines: one function over the parts of a corpus, in processes of this machine or on a cluster.
#
# What a part becomes is a function of that part alone, and is published whole. So neither the engine, nor the number of
# workers, nor the order, nor a second try can show in the bytes.

TRIES = 3  # of a part whose worker died, or met a failure that may pass


class Item(Protocol):
    """What is to be done for one part: anything that can be pickled and has a name."""

    @property
    def name(self) -> str: ...


I = TypeVar("I", bound=Item)  # noqa: E741
R = TypeVar("R")


@dataclass(frozen=True)
class Worker:
    """Threads a function over parts may use, and a progress callback (bytes done)."""

    threads: int = 1
    tick: Callable[[int], object] = bool


Function = Callable[[I, Worker], R]


class Engine(Protocol):
    def map(
        self, function: Function[I, R], items: Iterable[I], *, tick: Callable[[int], object]
    ) -> Iterator[tuple[I, R]]:
        """(item, function(item, worker)) for every item, as they get done. Items are asked for when a worker is free,
        so whoever has enough may stop giving them; leaving early ends what is under way."""
        ...


def call(function: Function[I, R], item: I) -> tuple[R, int]:
    """Return the result in a worker, and the bytes it processed."""
    seen: list[int] = []
    return function(item, Worker(tick=seen.append)), sum(seen)


def check_tries(item: Item, fault: BaseException | str, tries: int) -> None:
    """Raise where another try makes no sense, since the input is at fault and not the machine, or there were enough."""
    if isinstance(fault, ValueError):
        raise fault
    if tries == TRIES:
        raise RuntimeError(f"{item.name} failed {TRIES} times; the last time: {fault}")


# Done-records: what was made of each part, written last of all. They are the truth about a store, never a listing.

_TELL_EVERY_S = 60
Record = dict[str, Any]  # "files" lists what it vouches for: file, bytes and sha256 of each


@dataclass(frozen=True)
class _Recorded:
    """A function over parts that leaves a record of each in the store, once all the part's files are there."""

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
    """The records of all items, in order, or of the first that are `enough`; only what lacks one is made."""
    store.sweep()
    known = {item.name: record for item in items if (record := read_record(store, item.name)) is not None}

    first: list[Record] = []  # as far as every item has one: what may be enough. It is only added to, being long

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
    with store.writing(_file(name)) as path:
        path.write_text(json_text(record), encoding="utf-8")


def read_record(store: Store, name: str) -> Record | None:
    """What was made of a part; None where it is not done, or a file that the record vouches for is gone or cut off."""
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
