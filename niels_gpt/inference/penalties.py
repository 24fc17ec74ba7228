"""Penalties for what has been said, and biases: what is done to logits before the draw, for the rows that ask for
it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from niels_gpt.inference.sampling import Sampling

_NONE = (1.0, 0.0, 0.0)


class Penalties:
    """Counts of the ids of each row, its biases, and how it is penalised. Nothing is held or done until a row asks.

    Then it is done to all rows at once: a number divided by 1 and less 0 is the same number, to the bit.
    """

    def __init__(self, *, rows: int, V: int, device: torch.device) -> None:
        self._shape, self._device = (rows, V), device
        self._asking: set[int] = set()
        self._held: dict[str, torch.Tensor] = {}

    def begin(self, row: int, sampling: Sampling, prompt: Sequence[int]) -> None:
        rows, V = self._shape
        foreign = [token for token in sampling.logit_bias if token >= V]
        if foreign:
            raise ValueError(f"logit_bias names the id {foreign[0]}, and the model has ids 0 to {V - 1}")
        if not (sampling.penalises or sampling.logit_bias):
            return
        if not self._held:
            self._held = {name: torch.zeros(rows, V, device=self._device) for name in ("read", "written", "bias")}
            self._held["how"] = torch.tensor([_NONE] * rows, device=self._device)
        self._asking.add(row)
        for name in ("read", "written", "bias"):
            self._held[name][row] = 0
        self._held["read"][row, self._ids(prompt)] = 1
        self._held["bias"][row, self._ids(sampling.logit_bias)] = self._numbers(list(sampling.logit_bias.values()))
        how = [sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty]
        self._held["how"][row] = self._numbers(how)

    def end(self, row: int) -> None:
        if row in self._asking:
            self._asking.remove(row)
            self._held["bias"][row], self._held["how"][row] = 0, self._numbers(_NONE)

    def swap(self, row: int, other: int) -> None:
        if self._asking & {row, other}:
            for held in self._held.values():
                held[[row, other]] = held[[other, row]]
            self._asking = {{row: other, other: row}.get(asking, asking) for asking in self._asking}

    @property
    def asked(self) -> bool:
        return bool(self._asking)

    def applied(self, logits: torch.Tensor) -> torch.Tensor:
        """(B, V) of the first B rows."""
        if not self._asking:
            return logits
        read, written, bias, how = (held[: len(logits)] for held in self._held.values())
        repetition, presence, frequency = how.split(1, dim=-1)
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(read + written > 0, repeated, logits)
        return logits - presence * (written > 0) - frequency * written + bias

    def count(self, rows: Sequence[int], ids: Sequence[int]) -> None:
        """Count the tokens that these rows just generated; `ids` is (B,)."""
        if self._asking and rows:
            places = self._ids(rows), self._ids(ids[row] for row in rows)
            self._held["written"].index_put_(places, self._numbers([1.0]), accumulate=True)

    def _ids(self, ids: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(ids), dtype=torch.int64, device=self._device)

    def _numbers(self, numbers: Iterable[float]) -> torch.Tensor:
        return torch.tensor(list(numbers), dtype=torch.float32, device=self._device)
