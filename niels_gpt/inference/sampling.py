"""How the next token is drawn: the settings of a row, and the draw for all rows at once, where the logits are.

A draw of `torch.multinomial` is argmax(p / q), with q exponential noise from the generator. So each row's noise may
come from a source of its own (noise.py), and the rest is one computation for all rows. What p is multiplied by does not
matter there: weights are taken for it, of which the likeliest is 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch

_ROOM = torch.finfo(torch.float32)


def check_temperature(temperature: float) -> None:
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature must be >= 0 and finite, got {temperature}")


def check_top_k(k: int) -> None:
    if k < 1:
        raise ValueError(f"top_k must be at least 1, got {k}")


def check_top_p(p: float) -> None:
    if not 0.0 < p <= 1.0:
        raise ValueError(f"top_p must be in (0, 1], got {p}")


@dataclass(frozen=True)
class Sampling:
    """The settings of one row, in the order in which they act.

    `repetition_penalty` divides the positive logits of ids that were read or written and multiplies the negative ones;
    `presence_penalty` is taken off once, and `frequency_penalty` once for each time, where an id was written;
    `logit_bias` is added to the ids it names. Then top-k (of the k likeliest), temperature (0 takes the likeliest),
    top-p (of the fewest that make up p) and min-p (of those at least so likely, with the likeliest as 1).
    """

    temperature: float = 0.9
    top_k: int | None = 50
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if self.top_k is not None:
            check_top_k(self.top_k)
        if self.top_p is not None:
            check_top_p(self.top_p)
        if self.min_p is not None and not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p must be in [0, 1], got {self.min_p}")
        if not 0.0 < self.repetition_penalty < float("inf"):
            raise ValueError(f"repetition_penalty must be > 0 and finite, got {self.repetition_penalty}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not abs(getattr(self, name)) < float("inf"):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)}")
        for token, bias in self.logit_bias.items():
            if token < 0 or not abs(bias) < float("inf"):
                raise ValueError(f"logit_bias must give finite numbers to ids, got {bias} for {token}")

    @property
    def penalises(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


GREEDY = Sampling(temperature=0.0)


class Draw:
    """The settings of B rows, made ready for drawing. Made anew when a row comes or goes, not for every token."""

    def __init__(self, samplings: Sequence[Sampling], *, V: int, device: torch.device) -> None:
        self.sampled = [row for row, sampling in enumerate(samplings) if sampling.temperature > 0]  # these take noise
        # Rows of one k are a part of their own. The k likeliest of more would be others where logits are equal, as in
        # bf16 they often are, and what a row gets would depend on its neighbours' k.
        by_k = sorted(self.sampled, key=lambda row: _likeliest(samplings[row], V) or 0)
        parts = [(k, list(rows)) for k, rows in groupby(by_k, key=lambda row: _likeliest(samplings[row], V))]
        if len(parts) == 1 and len(self.sampled) < len(samplings):  # the others' draws are thrown away
            parts = [(parts[0][0], list(range(len(samplings))))]
        self._parts = [_Part([samplings[row] for row in rows], rows, k, device=device) for k, rows in parts]
        self._whole = len(parts) == 1
        greedy = [row for row in range(len(samplings)) if row not in self.sampled]
        self._greedy = torch.tensor(greedy, device=device) if greedy else None

    def ids(self, logits: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """(B, V) both -> (B,); -1 where logits are no numbers. Noise of rows that are not `sampled` means nothing."""
        if not self._parts:
            return logits.argmax(dim=-1)
        if self._whole:
            ids = self._parts[0].ids(logits, noise)
        else:
            ids = logits.new_empty(len(logits), dtype=torch.int64)
            for part in self._parts:
                ids[part.rows] = part.ids(logits[part.rows], noise[part.rows])
        if self._greedy is not None:
            ids[self._greedy] = logits[self._greedy].argmax(dim=-1)
        return ids


def _likeliest(sampling: Sampling, V: int) -> int | None:
    """Of how many a row draws, the likeliest first; None where their order does not matter, and they need no
    sorting."""
    if sampling.top_k is None:
        return None if sampling.top_p in (None, 1.0) else V
    return min(sampling.top_k, V)


class _Part:
    """Rows that draw from equally many."""

    def __init__(self, samplings: Sequence[Sampling], rows: list[int], k: int | None, *, device: torch.device) -> None:
        def column(values: Sequence[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

        self.rows, self._k = torch.tensor(rows, device=device), k
        # One that a float32 has no room for would be 0 or inf to torch, and 0 / 0 or -inf / inf is no number.
        self._temperature = column([min(max(s.temperature, _ROOM.tiny), _ROOM.max) for s in samplings])
        # A top_p of one is everything: sums of float32 may reach 1 before the last.
        top_p = [2.0 if s.top_p in (None, 1.0) else s.top_p for s in samplings]
        self._top_p = column(top_p) if min(top_p) < 2 else None
        min_p = [s.min_p or 0.0 for s in samplings]
        self._min_p = column(min_p) if max(min_p) > 0 else None

    def ids(self, logits: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """(b, V) both -> (b,)"""
        if self._k is None:
            # The largest is taken off first: a tiny temperature must not overflow to inf - inf.
            weights = ((logits - logits.amax(dim=-1, keepdim=True)) / self._temperature).exp_()
        else:
            values, indices = logits.topk(self._k, dim=-1)
            weights, noise = ((values - values[:, :1]) / self._temperature).exp_(), noise.gather(-1, indices)
            if self._top_p is not None:
                sums = weights.cumsum(dim=-1)
                dropped = sums - weights >= self._top_p * sums[:, -1:]
                dropped[:, 0] = False  # the likeliest stays, also where p is so small that a float32 has no room for it
                weights.masked_fill_(dropped, 0.0)
        if self._min_p is not None:
            weights.masked_fill_(weights < self._min_p, 0.0)
        best, places = (weights / noise).max(dim=-1, keepdim=True)
        ids = places if self._k is None else indices.gather(-1, places)
        return ids.masked_fill_(best.isnan(), -1)[:, 0]
