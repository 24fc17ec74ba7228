"""The rows of a KV cache as slots: who has which, what a free one still holds, and how many of them a step computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from niels_gpt.inference.noise import Source
from niels_gpt.inference.sampling import Sampling


@dataclass(frozen=True, eq=False)
class Row:
    """What somebody has asked for."""

    handle: int
    sampling: Sampling
    noise: Source
    keep: int  # of the last ids, when the context is full: so many are read again
    top_logprobs: int | None  # of so many of the likeliest ids; None: not even of the one drawn


@dataclass
class Slot:
    """A row of the cache: the ids that its keys are of, `read` of them, and those still to be read."""

    ids: list[int] = field(default_factory=list)
    read: int = 0
    row: Row | None = None

    def shared(self, ids: Sequence[int]) -> int:
        """How many of these ids are read already, the last not counted: it has to be, for what comes after it."""
        most = min(self.read, len(ids) - 1)
        return next((i for i in range(most) if self.ids[i] != ids[i]), most)


class Slots:
    """S slots, of which a step computes the first few: as many, in one of a few sizes, as hold all rows."""

    def __init__(self, S: int, *, buckets: Sequence[int]) -> None:
        self._slots = [Slot() for _ in range(S)]
        self._buckets = [*(size for size in sorted(buckets) if size < S), S]
        self._free = list(range(S))  # the longest free first
        self.places: dict[int, int] = {}  # of rows, by handle, in the order in which they came
        self.bucket = self._buckets[0]  # how many slots a step computes

    def __getitem__(self, place: int) -> Slot:
        return self._slots[place]

    def take(self, row: Row, ids: Sequence[int]) -> int:
        """The free slot that holds most of the beginning of these ids, or the one that nobody has gone on from for
        longest: its place."""
        if not self._free:
            raise ValueError(f"all {len(self._slots)} rows are taken: drop one, or make an engine of more slots")
        place = max(self._free, key=lambda free: self._slots[free].shared(ids))
        slot = self._slots[place]
        slot.ids, slot.read, slot.row = list(ids), slot.shared(ids), row
        self._free.remove(place)
        self.places[row.handle] = place
        self._choose_bucket()
        return place

    def free(self, handle: int) -> int:
        """What was read stays, for whoever goes on from it."""
        place = self.places.pop(handle)
        slot = self._slots[place]
        del slot.ids[slot.read :]
        slot.row = None
        self._free.append(place)
        self._choose_bucket()
        return place

    def move(self) -> tuple[int, int] | None:
        """(The last row's place, the first free one), where a step without it would compute fewer rows."""
        if self.bucket == self._buckets[0] or self._smallest(len(self.places)) == self.bucket:
            return None
        return max(self.places.values()), min(self._free)

    def swap(self, taken: int, free: int) -> None:
        slots = self._slots
        slots[taken], slots[free] = slots[free], slots[taken]
        row = slots[free].row
        assert row is not None
        self.places[row.handle] = free
        self._free[self._free.index(free)] = taken
        self._choose_bucket()

    def _choose_bucket(self) -> None:
        self.bucket = self._smallest(max(self.places.values(), default=-1) + 1)

    def _smallest(self, rows: int) -> int:
        return next(size for size in self._buckets if size >= rows)
