"""Sampling the next token of many rows at once: settings, seeded noise and penalties.

A draw of `torch.multinomial` is argmax(p / q), with q exponential noise from the generator. So each row's noise may
come from a source of its own (noise.py), and the rest is one computation for all rows. What p is multiplied by does not
matter there: weights are taken for it, of which the likeliest is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import torch
from torch.nn import functional as F

from niels_gpt.model.kernels import dispatch
from niels_gpt.rng import derive_seed, mixed

FAR = 0x1E3779B97F4A7C15  # from one key to the next, so that of the next draw no id is near one of this
_BITS = 23  # so that a half more than any of them is a float32 of its own


@dataclass(frozen=True)
class GeneratorNoise:
    """The V numbers that `torch.multinomial` would take from a generator; from torch's own where there is none."""

    generator: torch.Generator | None = None

    def fill(self, row: torch.Tensor) -> None:
        """The next V, into (V,) on the CPU."""
        row.exponential_(generator=self.generator)


class SeededNoise:
    """Numbers that are a hash of the seed, of how many were drawn before, and of the id.

    They are the same on every device, and are made there, of those ids alone that can be drawn.
    """

    def __init__(self, seed: int) -> None:
        self._key = derive_seed(seed, "noise")

    def next_key(self) -> int:
        """What the numbers of the next draw depend on, an int64."""
        self._key = following(self._key)
        return self._key


def following(key: int) -> int:
    """The key of the next draw after that of this one."""
    return (key + FAR + (1 << 63)) % (1 << 64) - (1 << 63)


Source = GeneratorNoise | SeededNoise


@dataclass(frozen=True)
class Drawn:
    """The numbers of B rows for one draw: those of generators (B, V), or the keys (B,) of those that are hashed. Where
    both are there, rows with a key of 0 are from generators."""

    V: int
    numbers: torch.Tensor | None = None
    keys: torch.Tensor | None = None

    def of(self, rows: torch.Tensor | slice, ids: torch.Tensor | None) -> torch.Tensor:
        """In each of these b rows of its ids, (b, k); of all V of them where that is None."""
        if self.keys is None:
            return self._from_generators(rows, ids)
        keys = self.keys[rows][:, None]
        each = torch.arange(self.V, device=keys.device) if ids is None else ids
        hashed = _hashed(keys, each)
        return hashed if self.numbers is None else torch.where(keys == 0, self._from_generators(rows, ids), hashed)

    def _from_generators(self, rows: torch.Tensor | slice, ids: torch.Tensor | None) -> torch.Tensor:
        assert self.numbers is not None
        numbers = self.numbers[rows]
        return numbers if ids is None else numbers.gather(-1, ids)


def _hashed(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    kernel = dispatch.hashed_noise(keys)
    if kernel is not None:
        return kernel(keys[:, 0], ids, bits=_BITS)
    bits = mixed(keys + ids) & (1 << _BITS) - 1
    return -((bits + 0.5) * 0.5**_BITS).log()


class Noise:
    """What is drawn with, of all rows of a cache, where some have generators."""

    def __init__(self, *, rows: int, V: int, device: torch.device) -> None:
        self._shape, self._device = (rows, V), device
        self._numbers: torch.Tensor | None = None  # in the CPU's memory

    def drawn(self, sources: Mapping[int, Source], *, rows: int) -> Drawn:
        """For one draw of the first rows: new numbers for those that have a source here."""
        numbers, keys = None, next_keys(sources, rows=rows)
        for row, source in sources.items():
            if isinstance(source, GeneratorNoise):
                numbers = self._numbers = torch.ones(self._shape) if self._numbers is None else self._numbers
                source.fill(numbers[row])
        return Drawn(
            self._shape[1],
            numbers=None if numbers is None else numbers[:rows].to(self._device),
            keys=torch.tensor(keys, device=self._device) if numbers is None or any(keys) else None,
        )


def next_keys(sources: Mapping[int, Source], *, rows: int) -> list[int]:
    """Of rows with a seed; 0 of all others."""
    keys = [0] * rows
    for row, source in sources.items():
        if isinstance(source, SeededNoise):
            keys[row] = source.next_key()
    return keys


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
