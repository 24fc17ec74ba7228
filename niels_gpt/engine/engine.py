"""Engines: one function over the parts of a corpus, in processes of this machine or on a cluster.

What a part becomes is a function of that part alone, and is published whole. So neither the engine, nor the number of
workers, nor the order, nor a second try can show in the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

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
