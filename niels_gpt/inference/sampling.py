"""How the next token is drawn: the settings of a row, and the draw for all rows at once, where the logits are.

A draw of `torch.multinomial` is argmax(p / q), with q exponential noise from the generator. So each row's noise may
come from a source of its own (noise.py), and the rest is one computation for all rows. What p is multiplied by does not
matter there: weights are taken for it, of which the likeliest is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import torch
from torch.nn import functional as F

from niels_gpt.inference.noise import Drawn

_ROOM = torch.finfo(torch.float32)
_PART = 1024  # of a vocabulary, to find the likeliest in
# Beyond these float32 logits would overflow, and logits that are no numbers end an answer. A model's own are some tens.
REPETITION_PENALTIES = (0.01, 100.0)
_MOST_ADDED = 1000.0  # by a penalty or a bias, to a logit


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
        low, high = REPETITION_PENALTIES
        if not low <= self.repetition_penalty <= high:
            raise ValueError(f"repetition_penalty must be in [{low}, {high}], got {self.repetition_penalty}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not abs(getattr(self, name)) <= _MOST_ADDED:
                raise ValueError(f"{name} must be within +-{_MOST_ADDED:g}, got {getattr(self, name)}")
        for token, bias in self.logit_bias.items():
            if token < 0 or not abs(bias) <= _MOST_ADDED:
                raise ValueError(f"logit_bias must give ids numbers within +-{_MOST_ADDED:g}, got {bias} for {token}")

    @property
    def penalises(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Kind:
    """What rows that are drawn together have in common: all that decides which operations there are."""

    sampled: bool  # False: each takes its likeliest id
    k: int | None = None  # of how many a row draws, the likeliest first; None: of all, in no order
    top_p: bool = False
    min_p: bool = False
    some_greedy: bool = False

    def ids(self, logits: torch.Tensor, settings: torch.Tensor, noise: Callable[..., torch.Tensor]) -> torch.Tensor:
        """(b, V) and (b, 4) -> (b,); -1 where logits are no numbers. `noise` gives that of ids (b, k), or None: of all
        V."""
        if not self.sampled:
            return _largest(logits)[:, 0]
        temperature, top_p, min_p, greedy = settings.split(1, dim=-1)
        if self.k is None:
            indices = None
            # The largest is taken off first: a tiny temperature must not overflow to inf - inf.
            weights = ((logits - logits.amax(dim=-1, keepdim=True)) / temperature).exp_()
        else:
            values, indices = _topk(logits, self.k)
            weights = ((values - values[:, :1]) / temperature).exp_()
            if self.top_p:
                sums = weights.cumsum(dim=-1)
                dropped = sums - weights >= top_p * sums[:, -1:]
                dropped[:, 0] = False  # the likeliest stays, also where p is so small that a float32 has no room for it
                weights.masked_fill_(dropped, 0.0)
        if self.min_p:
            weights.masked_fill_(weights < min_p, 0.0)
        best, places = (weights / noise(indices)).max(dim=-1, keepdim=True)
        ids = (places if indices is None else indices.gather(-1, places)).masked_fill_(best.isnan(), -1)
        if self.some_greedy:
            ids = torch.where(greedy > 0, _largest(logits), ids)
        return ids[:, 0]


def _largest(logits: torch.Tensor) -> torch.Tensor:
    """Return the id of the largest logit of each row, (b, 1); -1 where it is no finite number."""
    ids = logits.argmax(dim=-1, keepdim=True)
    return ids.masked_fill_(~logits.gather(-1, ids).isfinite(), -1)


def _topk(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest of (b, V), the largest first, and where they are."""
    if logits.is_cuda and logits.shape[1] >= 4 * _PART and k <= _PART // 2:
        return topk_of_parts(logits, k)
    return logits.topk(k, dim=-1)


def topk_of_parts(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, first of every part of a row, side by side, and then of those: to a GPU a row is the work of one block
    of threads."""
    b, V = logits.shape
    parts = F.pad(logits, (0, -V % _PART), value=float("-inf")).view(b, -1, _PART)
    values, indices = parts.topk(k, dim=-1, sorted=False)
    indices += torch.arange(0, parts.shape[1] * _PART, _PART, device=logits.device)[:, None]
    values, places = values.flatten(1).topk(k, dim=-1)
    return values, indices.flatten(1).gather(-1, places)


class Draw:
    """The settings of B rows, made ready for drawing; None where there is no row. Made anew when a row comes or goes,
    not for every token."""

    def __init__(self, samplings: Sequence[Sampling | None], *, V: int, device: torch.device) -> None:
        self.sampled = [row for row, s in enumerate(samplings) if s is not None and s.temperature > 0]
        drawn = [s for s in samplings if s is not None and s.temperature > 0]
        # Rows of one k are a part of their own. The k likeliest of more would be others where logits are equal, as in
        # bf16 they often are, and what a row gets would depend on its neighbours' k.
        by_k = sorted(self.sampled, key=lambda row: _likeliest(samplings[row], V) or 0)
        parts = [(k, list(rows)) for k, rows in groupby(by_k, key=lambda row: _likeliest(samplings[row], V))]
        if len(parts) <= 1:  # then all together, and what is drawn for nobody is thrown away
            parts = [(parts[0][0] if parts else None, list(range(len(samplings))))]
        elif len(drawn) < sum(s is not None for s in samplings):
            parts += [(None, [row for row, s in enumerate(samplings) if s is not None and s.temperature == 0])]
        self.settings = torch.tensor([_settings(s or (drawn or [GREEDY])[0]) for s in samplings])
        self._parts = [
            (_kind([samplings[row] for row in rows], k), torch.tensor(rows, dtype=torch.int64, device=device))
            for k, rows in parts
        ]
        self._there = self.settings.to(device)

    @property
    def kind(self) -> Kind | None:
        """Of all rows together; None where they are drawn in parts."""
        return self._parts[0][0] if len(self._parts) == 1 else None

    def ids(self, logits: torch.Tensor, noise: Drawn) -> torch.Tensor:
        """(B, V) -> (B,); -1 where logits are no numbers. Noise of rows that are not `sampled` means nothing."""
        if self.kind is not None:
            return self.kind.ids(logits, self._there, partial(noise.of, slice(None)))
        ids = logits.new_zeros(len(logits), dtype=torch.int64)
        for kind, rows in self._parts:
            ids[rows] = kind.ids(logits[rows], self._there[rows], partial(noise.of, rows))
        return ids


def _likeliest(sampling: Sampling | None, V: int) -> int | None:
    """Of how many a row draws, the likeliest first; None where their order does not matter, and they need no
    sorting."""
    assert sampling is not None
    if sampling.top_k is None:
        return None if sampling.top_p in (None, 1.0) else V
    return min(sampling.top_k, V)


def _settings(sampling: Sampling) -> list[float]:
    """Temperature, top-p, min-p, and whether none of them counts."""
    # One that a float32 has no room for would be 0 or inf to torch, and 0 / 0 or -inf / inf is no number.
    temperature = min(max(sampling.temperature, _ROOM.tiny), _ROOM.max)
    # A top_p of one is everything: sums of float32 may reach 1 before the last.
    top_p = 2.0 if sampling.top_p in (None, 1.0) else sampling.top_p
    return [temperature, top_p, sampling.min_p or 0.0, float(sampling.temperature == 0)]


def _kind(samplings: Sequence[Sampling | None], k: int | None) -> Kind:
    rows = [s for s in samplings if s is not None]
    drawn = [s for s in rows if s.temperature > 0]
    return Kind(
        sampled=bool(drawn),
        k=k,
        top_p=any(s.top_p not in (None, 1.0) for s in drawn),
        min_p=any(s.min_p for s in drawn),
        some_greedy=0 < len(drawn) < len(rows),
    )
