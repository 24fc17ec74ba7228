"""Model calls of the engine: one by one, or on a GPU as recorded CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from niels_gpt.inference.sampling import FAR, Draw, Drawn, Kind, following
from niels_gpt.model.decoder import Decoder
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import Precision, bf16_copy, computing_in, record, warm_up


class Steps:
    """A model and the KV cache of so many rows."""

    def __init__(self, model: GPT, *, rows: int, precision: Precision) -> None:
        self._precision, self._device = precision, model.tok_emb.weight.device
        self._model = bf16_copy(model) if precision == "bf16" else model
        self._decoder = Decoder(self._model, B=rows)

    def _computing(self) -> AbstractContextManager[object]:
        """In float32 as whoever calls does."""
        return computing_in("bf16", self._device.type) if self._precision == "bf16" else nullcontext()

    def read(self, ids: Sequence[int], *, row: int, start: int) -> None:
        """Ids of a row, at the places from `start` on (prefill)."""
        with self._computing():
            self._decoder.extend(torch.tensor([ids]), starts=[start], first=row)

    def logits(self, ids: Sequence[int], places: Sequence[int | None]) -> torch.Tensor:
        """What comes after one more id in each of the first b rows, (b, V) (decoding). Those at no place take no part.
        The next call may write over it."""
        with self._computing():
            hidden = self._decoder.extend(torch.tensor(ids)[:, None], starts=places)
            return self._model.logits(hidden[:, -1])

    def drawn(
        self, ids: Sequence[int], places: Sequence[int | None], keys: Sequence[int], draw: Draw, *, ahead: bool
    ) -> tuple[torch.Tensor, list[int]]:
        """The same, and the next ids, with noise of these keys (noise.py). `ahead`: nobody looks at the logits, and the
        next call may well be for the step after this one."""
        logits = self.logits(ids, places)
        noise = Drawn(self._model.cfg.V, keys=torch.tensor(keys, device=self._device))
        return logits, draw.ids(logits, noise).tolist()

    def swap(self, row: int, other: int, *, lengths: Sequence[int]) -> None:
        """Two rows change places, each with so many of its tokens."""
        self._decoder.swap(row, other, lengths=lengths)

    def clear(self, row: int) -> None:
        """Zero a row's cache."""
        self._decoder.clear(row)


# Decoding on a GPU as recorded CUDA graphs.
#
# There a token's time goes into launching some hundred small kernels, one after the other. A graph launches them all at
# once, with the same memory each time: what they are given is copied there before, what they make lies there
# afterwards.
#
# And a step leaves what the next one is given, if no row comes or goes. So that one is begun before the CPU has looked
# at what the first has drawn; it then finds the next result there, or begins again with what it wants instead. What a
# step in vain has written lies behind the tokens that count.

_KEPT = 32  # recordings of steps: each holds memory, and clients may ask for any k
_FEWEST = 16  # ids that are read together; then twice as many, and so on, the last ones without effect


class RecordedSteps(Steps):
    """Steps that are recorded when they are first asked for: by how many rows go on and the kind of draw, and by how
    many ids are read."""

    def __init__(self, model: GPT, *, rows: int, precision: Precision) -> None:
        super().__init__(model, rows=rows, precision=precision)
        self._readings: dict[int, _Reading] = {}
        self._recordings: dict[tuple[int, Kind | None], _Step] = {}

    def read(self, ids: Sequence[int], *, row: int, start: int) -> None:
        n = max(_FEWEST, 1 << (len(ids) - 1).bit_length())
        if n not in self._readings:
            with self._computing():
                self._readings[n] = _Reading(self._decoder, n, device=self._device)
        self._readings[n](ids, row=row, start=start)

    def logits(self, ids: Sequence[int], places: Sequence[int | None]) -> torch.Tensor:
        step = self._step(len(ids), None)
        step.go([ids, places, [0] * len(ids)], None, ahead=False)
        return step.logits

    def drawn(
        self, ids: Sequence[int], places: Sequence[int | None], keys: Sequence[int], draw: Draw, *, ahead: bool
    ) -> tuple[torch.Tensor, list[int]]:
        if draw.kind is None:  # parts that are others whenever a row comes or goes
            return super().drawn(ids, places, keys, draw, ahead=ahead)
        step = self._step(len(ids), draw.kind)
        return step.logits, step.go([ids, places, keys], draw, ahead=ahead)

    def _step(self, b: int, kind: Kind | None) -> _Step:
        step = self._recordings.pop((b, kind), None)
        if step is None:
            if len(self._recordings) == _KEPT:
                del self._recordings[next(iter(self._recordings))]  # that nobody has asked for for longest
            with self._computing():
                step = _Step(self._model, self._decoder, b, kind)
        self._recordings[b, kind] = step
        return step


class _Reading:
    """n ids into a row of the cache."""

    def __init__(self, decoder: Decoder, n: int, *, device: torch.device) -> None:
        self._T, self._n = decoder.T, n
        self._given = torch.zeros(3, n, dtype=torch.int64, device=device)  # ids, places, and the row's number
        self._given[1] = decoder.T  # nothing is read while it is recorded

        def read() -> None:
            x, places, rows = self._given[:, None]
            decoder.extend_anywhere(x, places, rows=rows[0, :1])

        self._graph = _recorded(read)

    def __call__(self, ids: Sequence[int], *, row: int, start: int) -> None:
        rest = self._n - len(ids)
        places = [*range(start, start + len(ids)), *[self._T] * rest]
        self._given.copy_(torch.tensor([[*ids, *[0] * rest], places, [row] * self._n]))
        self._graph.replay()


_Given = list[Sequence[int | None]]  # ids, places, keys


class _Step:
    """A token for each of b rows, drawn where there is a kind of draw."""

    def __init__(self, model: GPT, decoder: Decoder, b: int, kind: Kind | None) -> None:
        device, V = model.tok_emb.weight.device, model.cfg.V
        self._T, self._stream = decoder.T, torch.cuda.current_stream()
        self._given = torch.zeros(3, b, dtype=torch.int64, device=device)  # ids, places, keys
        self._given[1] = decoder.T  # nobody takes part while it is recorded
        self._pace = torch.zeros(3, b, dtype=torch.int64, device=device)  # by how much those are more in the next step
        self._settings = torch.ones(b, 4, device=device)
        self._draw: Draw | None = None
        # Of two steps, in memory that the GPU writes to by itself.
        self._results = [_Result(b, pinned=device.type == "cuda") for _ in range(2)]
        self._expected: _Given | None = None  # what the step that was begun is for
        self.logits = torch.zeros(0)  # (b, V)
        self._drawn = torch.zeros(b, dtype=torch.int64, device=device)

        def go_on() -> None:
            x, places, keys = self._given
            self.logits = model.logits(decoder.extend_anywhere(x[:, None], places[:, None])[:, 0])
            if kind is not None:
                noise = partial(Drawn(V, keys=keys).of, slice(None))
                self._drawn = kind.ids(self.logits, self._settings, noise)
                self._given.add_(self._pace)
                self._given[0] = self._drawn.clamp(min=0)  # -1 is a failed row, and no id to look up

        self._graph = _recorded(go_on)

    def go(self, given: _Given, draw: Draw | None, *, ahead: bool) -> list[int]:
        """What is drawn; without a draw nothing that means anything."""
        if draw is not self._draw and draw is not None:  # other rows, or in other places
            self._draw, self._expected = draw, None
            self._settings.copy_(draw.settings)
        if given != self._expected:
            self._give(given)
            self._begin()
        result, self._expected = self._results[0], None
        if ahead:
            self._begin()  # past the context in vain
        drawn = result.wait()
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
        self._results[0].take(self._drawn, self._stream)


class _Result:
    """The ids of a step on their way to the CPU."""

    def __init__(self, b: int, *, pinned: bool) -> None:
        self._ids = torch.zeros(b, dtype=torch.int64, pin_memory=pinned)
        self._there = torch.cuda.Event()

    def take(self, ids: torch.Tensor, stream: torch.cuda.Stream) -> None:
        self._ids.copy_(ids, non_blocking=True)
        self._there.record(stream)

    def wait(self) -> list[int]:
        self._there.synchronize()
        return self._ids.tolist()


@torch.inference_mode()
def _recorded(compute: Callable[[], None]) -> torch.cuda.CUDAGraph:
    # Weights that autocast has cast would be kept for whoever comes next, and freed before a replay.
    with torch.autocast(
        "cuda", torch.get_autocast_dtype("cuda"), enabled=torch.is_autocast_enabled("cuda"), cache_enabled=False
    ):
        warm_up(compute)
        return record(compute)[0]
