"""What an engine has computed: rows that are read, and rows that go on by a token, together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from niels_gpt.inference.noise import Drawn
from niels_gpt.inference.sampling import Draw
from niels_gpt.model.decoder import Decoder
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import Precision, bf16_copy, computing_in


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
