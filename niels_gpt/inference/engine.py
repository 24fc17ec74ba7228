"""The inference engine: rows in slots of one KV cache, a token of each per step.

A row is read first (prefill): its prompt but for the last id, or what of that no free slot holds from before. Then each
step gives it a token, for the price of one token (decoding), together with all others. Past the context there is a
choice: keep all T of the last ids, which have then to be read anew for every token, since each has another place than
before; or keep half of them, so that they are read once for T/2 tokens to come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import torch

from niels_gpt.inference.runner import RecordedSteps, Steps
from niels_gpt.inference.sampling import (
    Draw,
    GeneratorNoise,
    Noise,
    Penalties,
    Sampling,
    SeededNoise,
    Source,
    next_keys,
)
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import Precision


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


class Token(NamedTuple):
    """What a row got in a step. Log probabilities are the model's own, before penalties, temperature and filters."""

    row: int
    id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()  # (id, its log probability) of the likeliest


class RowsFailed(ValueError):
    """Rows whose logits are no numbers; `tokens` are what the other rows got in the same step.

    The caller has to drop the failed rows; the others go on.
    """

    def __init__(self, rows: Sequence[int], tokens: Sequence[Token]) -> None:
        super().__init__("the model's logits are no numbers: its weights are damaged, or its training diverged")
        self.rows, self.tokens = rows, tokens


class Engine:
    """A model and `slots` rows for it to write.

    A step computes the smallest of the `buckets` (1, 2, 4, 8, ...) that holds the rows there are. At one bucket what a
    row gets is the same to the bit whoever its neighbours are. In bf16 the model's matrices are copied once; in float32
    it computes as whoever calls it does.
    """

    def __init__(
        self, model: GPT, *, slots: int, buckets: Sequence[int] | None = None, precision: Precision = "float32"
    ) -> None:
        V, device = model.cfg.V, model.tok_emb.weight.device
        self._model, self._device = model, device
        self._steps = (RecordedSteps if device.type == "cuda" else Steps)(model, rows=slots, precision=precision)
        self._slots = Slots(slots, buckets=[1 << i for i in range(slots.bit_length())] if buckets is None else buckets)
        self._noise = Noise(rows=slots, V=V, device=device)
        self._penalties = Penalties(rows=slots, V=V, device=device)
        self._handles = count()
        self._drawn_for: list[Row | None] = []
        self._draw = Draw([None], V=V, device=device)

    def add(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        noise: Source | None = None,
        keep: int | None = None,
        top_logprobs: int | None = None,
    ) -> int:
        """The handle of a new row, which is read and gets its first token in the next step.

        `keep`: how many of the last ids are kept when the context is full, all T of them or, without it, half.
        `top_logprobs`: for how many of the likeliest ids log probabilities are wanted beside that of the one drawn.
        """
        if not prompt:
            raise ValueError("the prompt is empty: give the model at least one character to go on from")
        T, handle = self._model.cfg.T, next(self._handles)
        row = Row(handle, sampling, noise or GeneratorNoise(), keep or max(1, T // 2), top_logprobs)
        place = self._slots.take(row, prompt[-T:])
        try:
            self._penalties.begin(place, sampling, prompt)
        except Exception:
            self.drop(handle)
            raise
        return handle

    def drop(self, handle: int) -> None:
        """The row ends. Its slot goes to another, its keys to whoever begins as it did."""
        self._penalties.end(self._slots.free(handle))

    @torch.inference_mode()
    def step(self, handles: Iterable[int] | None = None) -> list[Token]:
        """A token for each row, or for these alone, in the order in which rows came; or RowsFailed, with the tokens
        of the others."""
        self._settle()
        wanted = None if handles is None else set(handles)
        places = [place for handle, place in self._slots.places.items() if wanted is None or handle in wanted]
        if not places:
            return []
        self._read(places)
        logits, drawn = self._drawn(places)
        failed = [place for place in places if drawn[place] < 0]
        written = [place for place in places if drawn[place] >= 0]
        self._penalties.count(written, drawn)
        logprobs = self._logprobs(logits, written, drawn)
        tokens = []
        for place in written:
            slot = self._slots[place]
            slot.read += 1  # only now: keys of a step that raised must not be taken for those of the id
            slot.ids.append(drawn[place])
            tokens.append(Token(self._row(place).handle, drawn[place], *logprobs.get(place, ())))
        for place in failed:
            self._slots[place].read = 0  # nobody may go on from its keys, nor find them in the slot
            self._steps.clear(place)
        if failed:
            raise RowsFailed([self._row(place).handle for place in failed], tokens)
        return tokens

    def _row(self, place: int) -> Row:
        row = self._slots[place].row
        assert row is not None
        return row

    def _settle(self) -> None:
        """Rows move down into free slots where a step then computes fewer."""
        while (move := self._slots.move()) is not None:
            slots = [self._slots[place] for place in move]
            read = [slot.read for slot in slots]
            for slot in slots:
                slot.read = 0  # so that an interrupt here would cost another reading, and mix nothing up
            self._steps.swap(*move, lengths=read)
            for slot, length in zip(slots, read, strict=True):
                slot.read = length
            self._penalties.swap(*move)
            self._slots.swap(*move)

    def _read(self, places: list[int]) -> None:
        """All ids of these rows but the last of each."""
        T = self._model.cfg.T
        for place in places:
            slot = self._slots[place]
            if len(slot.ids) > T:
                slot.ids, slot.read = slot.ids[-self._row(place).keep :], 0
            if len(slot.ids) - slot.read > 1:
                self._steps.read(slot.ids[slot.read : -1], row=place, start=slot.read)
                slot.read = len(slot.ids) - 1

    def _drawn(self, places: list[int]) -> tuple[torch.Tensor, list[int]]:
        """The last id of each of these rows is read: what comes after it, (bucket, V), and the next id of every row of
        the bucket. At other places both mean nothing."""
        slots = [self._slots[place] for place in range(self._slots.bucket)]
        rows = [slot.row for slot in slots]
        if rows != self._drawn_for:
            samplings = [None if row is None else row.sampling for row in rows]
            self._drawn_for, self._draw = rows, Draw(samplings, V=self._model.cfg.V, device=self._device)
        ids = [0] * len(slots)
        starts: list[int | None] = [None] * len(slots)
        for place in places:
            ids[place], starts[place] = slots[place].ids[-1], slots[place].read
        sources = {place: self._row(place).noise for place in self._draw.sampled if starts[place] is not None}
        if not self._penalties.asked and all(isinstance(source, SeededNoise) for source in sources.values()):
            unseen = all(self._row(place).top_logprobs is None for place in places)
            keys = next_keys(sources, rows=len(slots))
            return self._steps.drawn(ids, starts, keys, self._draw, ahead=unseen)
        logits = self._steps.logits(ids, starts)
        noise = self._noise.drawn(sources, rows=len(slots))
        return logits, self._draw.ids(self._penalties.applied(logits), noise).tolist()

    def _logprobs(
        self, logits: torch.Tensor, places: list[int], drawn: list[int]
    ) -> dict[int, tuple[float, tuple[tuple[int, float], ...]]]:
        most = {place: top for place in places if (top := self._row(place).top_logprobs) is not None}
        if not most:
            return {}
        asked = list(most)
        own = logits[asked].log_softmax(dim=-1)
        of_drawn = own.gather(-1, torch.tensor([[drawn[place]] for place in asked], device=self._device))
        values, ids = (part.tolist() for part in own.topk(min(max(most.values()), own.shape[-1])))
        found = zip(asked, of_drawn.flatten().tolist(), ids, values, strict=True)
        return {
            place: (of_drawn, tuple(zip(top, logprobs, strict=True))[: most[place]])
            for place, of_drawn, top, logprobs in found
        }
