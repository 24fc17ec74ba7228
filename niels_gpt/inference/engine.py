"""Continuous-batching inference engine: rows in slots of one KV cache, one token for each row per step.

Prefill computes a row's prompt except its last id, and except a prefix that a free slot still has in the cache. Then
each step (decoding) feeds one id per row, for all rows together. When the context is full, a row either keeps its last
T ids, which must be prefilled again for every token because their positions shift, or half of them, which are prefilled
once for the next T/2 tokens.
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
    Logprobs,
    Penalties,
    Sampling,
    SeededNoise,
    Source,
    draw_noise,
    next_keys,
    score_ids,
)
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import Precision


@dataclass(frozen=True, eq=False)
class Row:
    """Request for one generated sequence."""

    handle: int
    sampling: Sampling
    noise: Source
    keep: int  # last ids to keep, and prefill again, when the context is full
    top_logprobs: int | None  # most probable ids to report log probabilities of; None: not even of the sampled id
    score_prompt: bool = False  # report log probabilities of the prompt's ids, too


@dataclass
class Slot:
    """Row of the KV cache: its ids, of which the first `read` are in the cache, and the request that uses it."""

    ids: list[int] = field(default_factory=list)
    read: int = 0
    row: Row | None = None

    def shared(self, ids: Sequence[int]) -> int:
        """Return the length of the cached prefix of `ids`, without the last: its logits have to be computed."""
        most = min(self.read, len(ids) - 1)
        return next((i for i in range(most) if self.ids[i] != ids[i]), most)


class Slots:
    """Allocator of S slots, of which a step computes the first 1, 2, 4, 8, ... or S: the fewest that hold all rows."""

    def __init__(self, S: int) -> None:
        self._slots = [Slot() for _ in range(S)]
        self._buckets = [*(1 << i for i in range((S - 1).bit_length())), S]
        self._free = list(range(S))  # least recently freed first
        self.places: dict[int, int] = {}  # handle -> slot index, in order of arrival

    def __getitem__(self, place: int) -> Slot:
        return self._slots[place]

    @property
    def bucket(self) -> int:
        """Number of slots that a step computes."""
        return self._smallest(max(self.places.values(), default=-1) + 1)

    def take(self, row: Row, ids: Sequence[int]) -> int:
        """Assign a row to the free slot with the longest cached prefix of `ids`, on a tie to the one free longest."""
        if not self._free:
            raise ValueError(f"all {len(self._slots)} rows are taken: drop one, or make an engine of more slots")
        place = max(self._free, key=lambda free: self._slots[free].shared(ids))
        slot = self._slots[place]
        # Cached keys have no logits, so a prompt to be scored is computed from its first id on.
        slot.ids, slot.read, slot.row = list(ids), 0 if row.score_prompt else slot.shared(ids), row
        self._free.remove(place)
        self.places[row.handle] = place
        return place

    def free(self, handle: int) -> int:
        """Free a row's slot and return its index; the cached prefix stays, for later rows to continue from."""
        place = self.places.pop(handle)
        slot = self._slots[place]
        del slot.ids[slot.read :]
        slot.row = None
        self._free.append(place)
        return place

    def move(self) -> tuple[int, int] | None:
        """Return (last taken slot, first free slot) if moving rows down allows a smaller bucket, else None."""
        movable = self._smallest(len(self.places)) < self.bucket
        return (max(self.places.values()), min(self._free)) if movable else None

    def swap(self, taken: int, free: int) -> None:
        """Exchange a taken slot and a free one."""
        slots = self._slots
        slots[taken], slots[free] = slots[free], slots[taken]
        row = slots[free].row
        assert row is not None
        self.places[row.handle] = free
        self._free[self._free.index(free)] = taken

    def _smallest(self, rows: int) -> int:
        return next(size for size in self._buckets if size >= rows)


class Token(NamedTuple):
    """Token that a row (its handle) got in a step, with log probabilities in nats from the unfiltered logits."""

    row: int
    id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()  # (id, log probability), most probable first


class RowsFailed(ValueError):
    """Error for rows whose logits are not finite, which the caller must drop; `tokens` are those of the others."""

    def __init__(self, rows: Sequence[int], tokens: Sequence[Token]) -> None:
        super().__init__("the model's logits are no numbers: its weights are damaged, or its training diverged")
        self.rows, self.tokens = rows, tokens


MOST_SCORED = 8192  # ids of several prompts, padding included, to score in one call of the model


class Engine:
    """Continuous-batching engine for up to `slots` rows.

    Among equally many slots (see `Slots`) a row's results are the same to the bit whatever its neighbours are. With
    bf16 the model's matrices are copied once; with float32 the caller's autocast setting applies.
    """

    def __init__(self, model: GPT, *, slots: int, precision: Precision = "float32") -> None:
        V, device = model.cfg.V, model.tok_emb.weight.device
        self._model, self._device = model, device
        self._steps = (RecordedSteps if device.type == "cuda" else Steps)(model, rows=slots, precision=precision)
        self._slots = Slots(slots)
        self._penalties = Penalties(rows=slots, V=V, device=device)
        self._handles = count()
        self._prompts: dict[int, list[Token]] = {}  # handle -> scored prompt; empty until the row's first step
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
        score_prompt: bool = False,
    ) -> int:
        """Add a row and return its handle; the next step prefills it and samples its first token.

        `keep`: number of last ids to keep when the context is full, up to T; default T/2.
        `top_logprobs`: number of most probable ids to report log probabilities of, beside the sampled one.
        `score_prompt`: compute the same for each id of the prompt; `scored_prompt` returns it after the first step.
        """
        if not prompt:
            raise ValueError("the prompt is empty: give at least one character")
        T, handle = self._model.cfg.T, next(self._handles)
        row = Row(handle, sampling, noise or GeneratorNoise(), keep or max(1, T // 2), top_logprobs, score_prompt)
        place = self._slots.take(row, prompt[-T:])
        try:
            self._penalties.begin(place, sampling, prompt)
        except Exception:
            self.drop(handle)
            raise
        if score_prompt:
            self._prompts[handle] = []
        return handle

    def drop(self, handle: int) -> None:
        """End a row and free its slot; its keys stay cached for rows with the same prefix."""
        self._penalties.end(self._slots.free(handle))
        self._prompts.pop(handle, None)

    def scored_prompt(self, handle: int) -> list[Token]:
        """Return a row's prompt with log probabilities, which its first id lacks: once, after the first step."""
        return self._prompts.pop(handle, [])

    @torch.inference_mode()
    def step(self, handles: Iterable[int] | None = None) -> list[Token]:
        """Generate one token for each row, or for `handles` only; return them in the rows' order of arrival.

        Raise RowsFailed, with the tokens of the other rows, where logits are NaN or infinite.
        """
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
            slot.read += 1  # only now: a step that raised must not count as cached
            slot.ids.append(drawn[place])
            tokens.append(Token(self._row(place).handle, drawn[place], *logprobs.get(place, ())))
        for place in failed:
            self._slots[place].read = 0  # its keys may not be finite: no row may continue from them
            self._steps.decoder.clear(place)
        if failed:
            raise RowsFailed([self._row(place).handle for place in failed], tokens)
        return tokens

    def _row(self, place: int) -> Row:
        row = self._slots[place].row
        assert row is not None
        return row

    def _settle(self) -> None:
        """Move rows down into free slots as long as that allows a smaller bucket."""
        while (move := self._slots.move()) is not None:
            slots = [self._slots[place] for place in move]
            read = [slot.read for slot in slots]
            for slot in slots:
                slot.read = 0  # an interrupt during the swap then costs a prefill, and corrupts no row
            self._steps.decoder.swap(*move, lengths=read)
            for slot, length in zip(slots, read, strict=True):
                slot.read = length
            self._penalties.swap(*move)
            self._slots.swap(*move)

    def _read(self, places: list[int]) -> None:
        """Prefill these slots up to the last id of each, after truncating rows that are longer than the context."""
        T = self._model.cfg.T
        self._score([place for place in places if self._prompts.get(self._row(place).handle) == []])
        for place in places:
            slot = self._slots[place]
            if len(slot.ids) > T:
                slot.ids, slot.read = slot.ids[-self._row(place).keep :], 0
            if len(slot.ids) - slot.read > 1:
                self._steps.read(slot.ids[slot.read : -1], row=place, start=slot.read)
                slot.read = len(slot.ids) - 1

    def _score(self, places: list[int]) -> None:
        """Prefill these new slots, adjacent ones together, and keep the log probabilities of their prompts."""
        runs: list[list[int]] = []
        for place in sorted(places):
            run = [*runs[-1], place] if runs and runs[-1][-1] == place - 1 else [place]
            if len(run) > 1 and len(run) * max(len(self._slots[other].ids) for other in run) <= MOST_SCORED:
                runs[-1] = run
            else:
                runs.append([place])
        for run in runs:
            prompts, rows = [self._slots[place].ids for place in run], [self._row(place) for place in run]
            scored = iter(self._steps.score(prompts, first=run[0], top=max(row.top_logprobs or 0 for row in rows)))
            for place, row, ids in zip(run, rows, prompts, strict=True):
                later = zip(ids[1:], scored, strict=False)  # `scored` goes on with the next row
                tokens = [Token(row.handle, id, own, top[: row.top_logprobs]) for id, (own, top) in later]
                self._prompts[row.handle] = [Token(row.handle, ids[0]), *tokens]
                self._slots[place].read = len(ids) - 1

    def _drawn(self, places: list[int]) -> tuple[torch.Tensor, list[int]]:
        """Feed the last id of these slots; return logits (bucket, V) and sampled ids, meaningless for other slots."""
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
        noise = draw_noise(sources, rows=len(slots), V=self._model.cfg.V, device=self._device)
        return logits, self._draw.ids(self._penalties.applied(logits), noise).tolist()

    def _logprobs(self, logits: torch.Tensor, places: list[int], drawn: list[int]) -> dict[int, Logprobs]:
        """Return {slot: (log probability of the sampled id, top_logprobs)} of the rows that ask for them."""
        most = {place: top for place in places if (top := self._row(place).top_logprobs) is not None}
        if not most:
            return {}
        asked = list(most)
        ids = torch.tensor([drawn[place] for place in asked], device=self._device)
        found = zip(asked, score_ids(logits[asked], ids, top=max(most.values())), strict=True)
        return {place: (own, top[: most[place]]) for place, (own, top) in found}
