"""The one way in which tokens are written: rows that come and go, one KV cache, one draw for all of them a step.

A row is read first (prefill): its prompt, or what of it no free slot holds from before. From then on a step gives it a
token, for the price of one token (decoding), together with all others. Past the context there is a choice: keep all T
of the last ids, which have then to be read anew for every token, since each has another place than before; or keep half
of them, so that they are read once for T/2 tokens to come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

import torch

from niels_gpt.inference.noise import GeneratorNoise, Noise, Source
from niels_gpt.inference.penalties import Penalties
from niels_gpt.inference.sampling import GREEDY, Draw, Sampling
from niels_gpt.inference.slots import Row, Slots
from niels_gpt.model.decoder import Decoder
from niels_gpt.model.gpt import GPT


@dataclass(frozen=True)
class Token:
    """What a row got in a step. Log probabilities are the model's own, before penalties, temperature and filters."""

    row: int
    id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()  # (id, its log probability) of the likeliest


class Engine:
    """A model and `slots` rows for it to write.

    A step computes the smallest of the `buckets` (1, 2, 4, 8, ...) that holds the rows there are. At one bucket what a
    row gets is the same to the bit whoever its neighbours are.
    """

    def __init__(self, model: GPT, *, slots: int, buckets: Sequence[int] | None = None) -> None:
        V, device = model.cfg.V, model.tok_emb.weight.device
        self._model, self._device = model, device
        self._decoder = Decoder(model, B=slots)
        self._slots = Slots(slots, buckets=[1 << i for i in range(slots.bit_length())] if buckets is None else buckets)
        self._noise = Noise(rows=slots, V=V, device=device)
        self._penalties = Penalties(rows=slots, V=V, device=device)
        self._handles = count()
        self._drawn_for: list[Row | None] = []
        self._draw = Draw([], V=V, device=device)

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
        except ValueError:
            self._slots.free(handle)
            raise
        return handle

    def drop(self, handle: int) -> None:
        """The row ends. Its slot goes to another, its keys to whoever begins as it did."""
        self._penalties.end(self._slots.free(handle))

    @torch.inference_mode()
    def step(self, handles: Iterable[int] | None = None) -> list[Token]:
        """A token for each row, or for these alone, in the order in which rows came."""
        self._settle()
        wanted = None if handles is None else set(handles)
        places = [place for handle, place in self._slots.places.items() if wanted is None or handle in wanted]
        if not places:
            return []
        logits = self._next_logits(places)
        drawn = self._drawn(logits, places)
        if any(drawn[place] < 0 for place in places):
            raise ValueError("the model's logits are no numbers: its weights are damaged, or its training diverged")
        self._penalties.count(places, drawn)
        logprobs = self._logprobs(logits, places, drawn)
        tokens = []
        for place in places:
            slot = self._slots[place]
            slot.ids.append(drawn[place])
            tokens.append(Token(self._row(place).handle, drawn[place], *logprobs.get(place, ())))
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
            self._decoder.swap(*move, lengths=read)
            for slot, length in zip(slots, read, strict=True):
                slot.read = length
            self._penalties.swap(*move)
            self._slots.swap(*move)

    def _next_logits(self, places: list[int]) -> torch.Tensor:
        """(bucket, V), of which the rows at these places mean something."""
        bucket, T = self._slots.bucket, self._model.cfg.T
        unread = {}
        for place in places:
            slot = self._slots[place]
            if len(slot.ids) > T:
                slot.ids, slot.read = slot.ids[-self._row(place).keep :], 0
            unread[place] = slot.ids[slot.read :]
        going_on = {place: new[0] for place, new in unread.items() if len(new) == 1}
        if going_on:
            x = torch.tensor([[going_on.get(place, 0)] for place in range(bucket)], device=self._device)
            starts = [self._slots[place].read if place in going_on else None for place in range(bucket)]
            hidden = self._decoder.extend(x, starts=starts)[:, -1]
        else:
            hidden = torch.zeros(bucket, self._model.cfg.C, device=self._device)
        for place, new in unread.items():
            slot = self._slots[place]
            if len(new) > 1:
                x = torch.tensor([new], device=self._device)
                hidden[place] = self._decoder.extend(x, starts=[slot.read], first=place)[0, -1]
            slot.read = len(slot.ids)
        return self._model.logits(hidden)

    def _drawn(self, logits: torch.Tensor, places: list[int]) -> list[int]:
        """The next id for every row of the bucket; of those at other places than these it means nothing."""
        rows = [self._slots[place].row for place in range(len(logits))]
        if rows != self._drawn_for:
            samplings = [GREEDY if row is None else row.sampling for row in rows]
            self._drawn_for, self._draw = rows, Draw(samplings, V=self._model.cfg.V, device=self._device)
        sources = {place: self._row(place).noise for place in places if place in self._draw.sampled}
        logits = self._penalties.applied(logits)
        if not sources:
            return logits.argmax(dim=-1).tolist()
        return self._draw.ids(logits, self._noise.drawn(sources, rows=len(rows))).tolist()

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
