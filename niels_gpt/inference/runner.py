"""Model calls of the inference engine: eager, or on a GPU as recorded CUDA graphs."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from niels_gpt.inference.sampling import FAR, Draw, Kind, Logprobs, following, score_ids
from niels_gpt.model.decoder import Decoder
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import Precision, bf16_copy, computing_in, record, warm_up

_SCORED_LOGITS = 1 << 24  # logits held at once while prompts are scored: 64 MiB


class Steps:
    """Eager model calls on the KV cache of `rows` rows."""

    def __init__(self, model: GPT, *, rows: int, precision: Precision) -> None:
        self._precision, self._device = precision, model.tok_emb.weight.device
        self._model = bf16_copy(model) if precision == "bf16" else model
        self.decoder = Decoder(self._model, B=rows)

    def _computing(self) -> AbstractContextManager[object]:
        """Return bf16 autocast, or for float32 a null context: the caller's autocast setting applies."""
        return computing_in("bf16", self._device.type) if self._precision == "bf16" else nullcontext()

    def read(self, ids: Sequence[int], *, row: int, start: int) -> None:
        """Prefill ids of a row, at the positions from `start` on."""
        with self._computing():
            self.decoder.extend(torch.tensor([ids]), starts=[start], first=row)

    def score(self, rows: Sequence[Sequence[int]], *, first: int, top: int) -> list[Logprobs]:
        """Prefill whole rows from slot `first` on, but for their last ids; return scores of all ids but the first."""
        lengths = [len(ids) - 1 for ids in rows]
        x = torch.zeros(len(rows), max(1, *lengths), dtype=torch.int64)  # padding lies behind a row's valid tokens
        for row, ids in zip(x, rows, strict=True):
            row[: len(ids) - 1] = torch.tensor(ids[:-1])
        found: list[Logprobs] = []
        with self._computing():
            hidden = self.decoder.extend(x, starts=[0] * len(rows), first=first)
            flat = torch.cat([states[:n] for states, n in zip(hidden, lengths, strict=True)])
            targets = torch.tensor([id for ids in rows for id in ids[1:]], dtype=torch.int64, device=self._device)
            size = max(1, _SCORED_LOGITS // self._model.cfg.V)
            for states, wanted in zip(flat.split(size), targets.split(size), strict=True):
                found += score_ids(self._model.logits(states), wanted, top=top)
        return found

    def logits(self, ids: Sequence[int], places: Sequence[int | None]) -> torch.Tensor:
        """Decode one more id in each of the first b rows; return the next logits, (b, V).

        `places` are the positions of the ids; rows with None are inactive. The next call may overwrite the result.
        """
        with self._computing():
            hidden = self.decoder.extend(torch.tensor(ids)[:, None], starts=places)
            return self._model.logits(hidden[:, -1])


# Decoding on a GPU as recorded CUDA graphs.
#
# Eager decoding spends its time launching some hundred small kernels per token. A graph launches them all at once, on
# fixed memory: inputs are copied there before a replay, and results are read from there after it.
#
# A step also writes the inputs of the next one, which are right unless a row comes or goes. So the next step is
# launched before the CPU has read the ids of this one. If the next call wants other inputs, it launches a new step;
# the wasted one has written to the cache only behind the valid tokens.

_KEPT = 32  # recorded steps to keep: each holds memory, and clients may ask for any top-k
_FEWEST = 16  # smallest prefill that is recorded; larger ones double, padded with inactive ids


class RecordedSteps(Steps):
    """Model calls as CUDA graphs, recorded at first use: by number of rows and kind of sampling, or prefill length."""

    def __init__(self, model: GPT, *, rows: int, precision: Precision) -> None:
        super().__init__(model, rows=rows, precision=precision)
        self._readings: dict[int, _Reading] = {}
        self._recordings: dict[tuple[int, Kind | None], _Step] = {}

    def read(self, ids: Sequence[int], *, row: int, start: int) -> None:
        n = max(_FEWEST, 1 << (len(ids) - 1).bit_length())
        if n not in self._readings:
            with self._computing():
                self._readings[n] = _Reading(self.decoder, n, device=self._device)
        self._readings[n](ids, row=row, start=start)

    def logits(self, ids: Sequence[int], places: Sequence[int | None]) -> torch.Tensor:
        step = self._step(len(ids), None)
        step.go([ids, places, [0] * len(ids)], None, ahead=False)
        return step.logits

    def drawn(
        self, ids: Sequence[int], places: Sequence[int | None], keys: Sequence[int], draw: Draw, *, ahead: bool
    ) -> tuple[torch.Tensor, list[int]]:
        """Decode as `logits` does, and also sample the next ids, with SeededNoise of these keys.

        `draw` is of one kind. `ahead`: the caller ignores the logits and will probably ask for the next step of the
        same rows.
        """
        step = self._step(len(ids), draw.kind)
        return step.logits, step.go([ids, places, keys], draw, ahead=ahead)

    def _step(self, b: int, kind: Kind | None) -> "_Step":
        step = self._recordings.pop((b, kind), None)
        if step is None:
            if len(self._recordings) == _KEPT:
                del self._recordings[next(iter(self._recordings))]  # the least recently used
            with self._computing():
                step = _Step(self._model, self.decoder, b, kind)
        self._recordings[b, kind] = step
        return step


class _Reading:
    """Recorded prefill of up to n ids of one row."""

    def __init__(self, decoder: Decoder, n: int, *, device: torch.device) -> None:
        self._T, self._n = decoder.T, n
        self._given = torch.zeros(3, n, dtype=torch.int64, device=device)  # ids, positions, row index
        self._given[1] = decoder.T  # all ids are inactive while recording

        def read() -> None:
            x, places, rows = self._given[:, None]
            decoder.extend_anywhere(x, places, rows=rows[0, :1])

        self._graph = _recorded(read)

    def __call__(self, ids: Sequence[int], *, row: int, start: int) -> None:
        rest = self._n - len(ids)
        places = [*range(start, start + len(ids)), *[self._T] * rest]
        self._given.copy_(torch.tensor([[*ids, *[0] * rest], places, [row] * self._n]))
        self._graph.replay()


_Given = list[Sequence[int | None]]  # ids, positions, noise keys


class _Step:
    """Recorded decoding step of b rows, which also samples the next ids if `kind` is given."""

    def __init__(self, model: GPT, decoder: Decoder, b: int, kind: Kind | None) -> None:
        device = model.tok_emb.weight.device
        self._T, self._stream = decoder.T, torch.cuda.current_stream()
        self._given = torch.zeros(3, b, dtype=torch.int64, device=device)  # ids, positions, noise keys
        self._given[1] = decoder.T  # all rows are inactive while recording
        self._pace = torch.zeros(3, b, dtype=torch.int64, device=device)  # increments of _given from step to step
        self._settings = torch.ones(b, 4, device=device)
        self._draw: Draw | None = None
        # Two buffers of pinned memory, with the event that ends a copy: one step is copied while the other is read.
        pinned = device.type == "cuda"
        self._results = [(torch.zeros(b, dtype=torch.int64, pin_memory=pinned), torch.cuda.Event()) for _ in range(2)]
        self._expected: _Given | None = None  # inputs of the step that was launched ahead
        self.logits = torch.zeros(0)  # (b, V)
        self._drawn = torch.zeros(b, dtype=torch.int64, device=device)

        def go_on() -> None:
            x, places, keys = self._given
            self.logits = model.logits(decoder.extend_anywhere(x[:, None], places[:, None])[:, 0])
            if kind is not None:
                self._drawn = kind.ids(self.logits, self._settings, keys)
                self._given.add_(self._pace)
                self._given[0] = self._drawn.clamp(min=0)  # -1 marks a failed row and has no embedding

        self._graph = _recorded(go_on)

    def go(self, given: _Given, draw: Draw | None, *, ahead: bool) -> list[int]:
        """Return the ids sampled from inputs `given` (meaningless without a draw); `ahead`: launch the next step."""
        if draw is not self._draw and draw is not None:  # other rows, or in other slots
            self._draw, self._expected = draw, None
            self._settings.copy_(draw.settings)
        if given != self._expected:
            self._give(given)
            self._begin()
        (result, copied), self._expected = self._results[0], None
        if ahead:
            self._begin()  # wasted if the context is full
        copied.synchronize()
        drawn: list[int] = result.tolist()
        if ahead:
            _, places, keys = given
            ids = [0 if place is None else token for place, token in zip(places, drawn, strict=True)]
            more = [None if place is None else place + 1 for place in places]
            self._expected = [ids, more, [following(key) if key else 0 for key in keys]]
        return drawn

    def _give(self, given: _Given) -> None:
        ids, places, keys = given
        there = [self._T if place is None else place for place in places]
        pace = [[0] * len(ids), [place is not None for place in places], [FAR if key else 0 for key in keys]]
        both = torch.tensor([[ids, there, keys], pace]).to(self._given.device)
        self._given.copy_(both[0])
        self._pace.copy_(both[1])

    def _begin(self) -> None:
        self._results.reverse()
        self._graph.replay()
        result, copied = self._results[0]
        result.copy_(self._drawn, non_blocking=True)
        copied.record(self._stream)


@torch.inference_mode()
def _recorded(compute: Callable[[], None]) -> torch.cuda.CUDAGraph:
    # Without autocast's weight cache: its casts would be freed before a replay reads them.
    with torch.autocast(
        "cuda", torch.get_autocast_dtype("cuda"), enabled=torch.is_autocast_enabled("cuda"), cache_enabled=False
    ):
        warm_up(compute)
        return record(compute)[0]
