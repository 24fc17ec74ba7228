"""Continuous-batching inference engine: rows in slots of one KV cache, one token for each row per step.

Prefill computes a row's prompt except its last id, and except a prefix that a free slot still has in the cache. Then
each step (decoding) feeds one id per row, for all rows together. When the context is full, a row either keeps its last
T ids, which must be prefilled again for every token because their positions shift, or half of them, which are prefilled
once for the next T/2 tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import torch

from niels_gpt.inference.runner import RecordedSteps, Steps
from niels_gpt.inference.sampling import (
    Draw,
    Logprobs,
    Penalties,
    Sampling,
    Source,
    next_noise,
    penalise,
    score_ids,
)
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import Precision


class Token(NamedTuple):
    """Token that a row (its handle) got in a step, with log probabilities in nats from the unfiltered logits."""

    row: int
    id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()  # (id, log probability), most probable first
    prompt: tuple["Token", ...] = ()  # the scored prompt, whose first id has no score, with the row's first token
    offset: int = 0  # characters of the text before it, set where text is made


@dataclass(eq=False)
class Row:
    """Sequence being generated, in one slot of the KV cache."""

    handle: int
    slot: int
    ids: list[int]  # of the prompt and generated, as many as the context holds
    sampling: Sampling
    noise: Source
    penalties: Penalties | None
    keep: int  # last ids to keep, and prefill again, when the context is full
    top_logprobs: int | None  # most probable ids to report log probabilities of; None: not even of the sampled id
    score_prompt: bool
    scored: tuple[Token, ...] = ()  # the prompt, until the row's first token reports it


class RowsFailed(ValueError):
    """Error for rows whose logits are not finite, which the caller must drop; `tokens` are those of the others."""

    def __init__(self, rows: Sequence[int], tokens: Sequence[Token]) -> None:
        super().__init__("the model's logits are no numbers: its weights are damaged, or its training diverged")
        self.rows, self.tokens = rows, tokens


MOST_SCORED = 8192  # ids of several prompts, padding included, to score in one call of the model


class Engine:
    """Continuous-batching engine for up to `slots` rows.

    A step computes the first 1, 2, 4, 8, ... or all slots: the fewest that hold all rows. Among equally many slots a
    row's results are the same to the bit whatever its neighbours are. With bf16 the model's matrices are copied once;
    with float32 the caller's autocast setting applies.
    """

    def __init__(self, model: GPT, *, slots: int, precision: Precision = "float32") -> None:
        self._model, self._device = model, model.tok_emb.weight.device
        self._steps = (RecordedSteps if self._device.type == "cuda" else Steps)(model, rows=slots, precision=precision)
        self._cached: list[list[int]] = [[] for _ in range(slots)]  # ids in the KV cache of each slot
        self._free = list(range(slots))  # least recently freed first
        self._rows: dict[int, Row] = {}  # by handle, in order of arrival
        self._handles = count()
        self._drawn_for: list[Row | None] = []
        self._draw = Draw([], V=model.cfg.V, device=self._device)

    def add(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        noise: Source = None,
        keep: int | None = None,
        top_logprobs: int | None = None,
        score_prompt: bool = False,
    ) -> int:
        """Add a row, for which a slot must be free, and return its handle; the next step samples its first token.

        It gets the free slot with the longest cached prefix of the prompt, on a tie the one free longest.
        `keep`: number of last ids to keep when the context is full, up to T; default T/2.
        `top_logprobs`: number of most probable ids to report log probabilities of, beside the sampled one.
        `score_prompt`: report the same for each id of the prompt, with the first token.
        """
        if not prompt:
            raise ValueError("the prompt is empty: give at least one character")
        cfg, ids = self._model.cfg, list(prompt)
        penalties = Penalties(sampling, ids, V=cfg.V, device=self._device) if sampling.penalises else None
        ids, keep = ids[-cfg.T :], keep or max(1, cfg.T // 2)
        slot = max(self._free, key=lambda free: _shared(self._cached[free], ids))
        # Cached keys have no logits, so a prompt to be scored is computed from its first id on.
        del self._cached[slot][0 if score_prompt else _shared(self._cached[slot], ids) :]
        self._free.remove(slot)
        row = Row(next(self._handles), slot, ids, sampling, noise, penalties, keep, top_logprobs, score_prompt)
        self._rows[row.handle] = row
        return row.handle

    def drop(self, handle: int) -> None:
        """End a row and free its slot; its keys stay cached for rows with the same prefix."""
        self._free.append(self._rows.pop(handle).slot)

    @torch.inference_mode()
    def step(self, handles: Iterable[int] | None = None) -> list[Token]:
        """Generate one token for each row, or for `handles` only; return them in the rows' order of arrival.

        Raise RowsFailed, with the tokens of the other rows, where logits are NaN or infinite.
        """
        self._settle()
        wanted = self._rows.keys() if handles is None else set(handles)
        rows = [row for row in self._rows.values() if row.handle in wanted]
        if not rows:
            return []
        self._prefill(rows)
        logits, drawn = self._drawn(rows)
        written = [row for row in rows if drawn[row.slot] >= 0]
        logprobs = self._logprobs(logits, written, drawn)
        tokens = []
        for row in written:
            own, top = logprobs.get(row.handle, (None, ()))
            token, row.scored = Token(row.handle, drawn[row.slot], own, top, row.scored), ()
            self._cached[row.slot].append(row.ids[-1])  # only now: a step that raised must not count as cached
            row.ids.append(token.id)
            if row.penalties is not None:
                row.penalties.count(token.id)
            tokens.append(token)
        failed = [row for row in rows if drawn[row.slot] < 0]
        for row in failed:
            self._cached[row.slot].clear()  # its keys may not be finite: no row may continue from them
            self._steps.decoder.clear(row.slot)
        if failed:
            raise RowsFailed([row.handle for row in failed], tokens)
        return tokens

    def _bucket(self, rows: int) -> int:
        """Return the number of slots that a step computes for rows in the first `rows` slots."""
        return min(len(self._cached), 1 << max(0, rows - 1).bit_length())

    def _used(self) -> int:
        """Return the number of slots up to the last one that has a row."""
        return 1 + max((row.slot for row in self._rows.values()), default=-1)

    def _settle(self) -> None:
        """Move rows down into free slots as long as that allows a smaller bucket."""
        while self._bucket(len(self._rows)) < self._bucket(self._used()):
            last, free, cached = max(self._rows.values(), key=lambda row: row.slot), min(self._free), self._cached
            self._steps.decoder.swap(last.slot, free, lengths=(len(cached[last.slot]), len(cached[free])))
            cached[last.slot], cached[free] = cached[free], cached[last.slot]
            self._free[self._free.index(free)] = last.slot
            last.slot = free

    def _prefill(self, rows: list[Row]) -> None:
        """Prefill these rows up to the last id of each, after truncating those that are longer than the context."""
        self._score([row for row in rows if row.score_prompt])
        for row in rows:
            cached = self._cached[row.slot]
            if len(row.ids) > self._model.cfg.T:
                row.ids = row.ids[-row.keep :]
                cached.clear()
            if new := row.ids[len(cached) : -1]:
                self._steps.read(new, row=row.slot, start=len(cached))
                cached += new

    def _score(self, rows: list[Row]) -> None:
        """Prefill these new rows, those in adjacent slots together, and keep the log probabilities of their prompts."""
        runs: list[list[Row]] = []
        for row in sorted(rows, key=lambda row: row.slot):
            run = [*runs[-1], row] if runs and runs[-1][-1].slot == row.slot - 1 else [row]
            if len(run) > 1 and len(run) * max(len(other.ids) for other in run) <= MOST_SCORED:
                runs[-1] = run
            else:
                runs.append([row])
        for run in runs:
            top = max(row.top_logprobs or 0 for row in run)
            scored = iter(self._steps.score([row.ids for row in run], first=run[0].slot, top=top))
            for row in run:
                later = zip(row.ids[1:], scored, strict=False)  # `scored` goes on with the next row
                tokens = [Token(row.handle, id, own, top[: row.top_logprobs]) for id, (own, top) in later]
                row.scored, row.score_prompt = (Token(row.handle, row.ids[0]), *tokens), False
                self._cached[row.slot] = row.ids[:-1]

    def _drawn(self, rows: list[Row]) -> tuple[torch.Tensor, list[int]]:
        """Feed the last id of these rows; return logits (bucket, V) and sampled ids, meaningless for other slots."""
        b, V = self._bucket(self._used()), self._model.cfg.V
        in_slot = {row.slot: row for row in self._rows.values()}
        slots = [in_slot.get(slot) for slot in range(b)]
        if slots != self._drawn_for:
            samplings = [None if row is None else row.sampling for row in slots]
            self._drawn_for, self._draw = slots, Draw(samplings, V=V, device=self._device)
        ids = [0] * b
        starts: list[int | None] = [None] * b
        for row in rows:
            ids[row.slot], starts[row.slot] = row.ids[-1], len(self._cached[row.slot])
        sampled = [row for row in rows if row.sampling.temperature > 0]
        sources = {row.slot: row.noise for row in sorted(sampled, key=lambda row: row.slot)}
        penalised = {row.slot: row.penalties for row in rows if row.penalties is not None}
        noise = next_noise(sources, rows=b, V=V)
        # Groups of rows are not recorded: they change whenever a row comes or goes.
        alike = not penalised and self._draw.kind is not None
        if alike and isinstance(noise, list) and isinstance(self._steps, RecordedSteps):
            unseen = all(row.top_logprobs is None for row in rows)
            return self._steps.drawn(ids, starts, noise, self._draw, ahead=unseen)
        logits = self._steps.logits(ids, starts)
        adjusted = logits
        if penalised:
            where = torch.tensor(list(penalised), device=self._device)
            adjusted = logits.index_copy(0, where, penalise(logits[where], list(penalised.values())))
        return logits, self._draw.ids(adjusted, torch.as_tensor(noise, device=self._device)).tolist()

    def _logprobs(self, logits: torch.Tensor, rows: list[Row], drawn: list[int]) -> dict[int, Logprobs]:
        """Return {handle: (log probability of the sampled id, top_logprobs)} of the rows that ask for them."""
        most = {row: row.top_logprobs for row in rows if row.top_logprobs is not None}
        if not most:
            return {}
        slots = [row.slot for row in most]
        ids = torch.tensor([drawn[slot] for slot in slots], device=self._device)
        found = zip(most.items(), score_ids(logits[slots], ids, top=max(most.values())), strict=True)
        return {row.handle: (own, top[:n]) for (row, n), (own, top) in found}


def _shared(cached: Sequence[int], ids: Sequence[int]) -> int:
    """Return the length of the cached prefix of `ids`, without the last: its logits have to be computed."""
    most = min(len(cached), len(ids) - 1)
    return next((i for i in range(most) if cached[i] != ids[i]), most)
