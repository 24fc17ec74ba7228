"""Batched sampling of the next token of many rows: settings, seeded noise and penalties.

`torch.multinomial` samples argmax(p / q), with q exponential noise from the generator. So each row's noise can come
from its own source, and the rest is one computation for all rows. The scale of p does not matter: it is replaced by
weights of which the largest is 1.
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

FAR = 0x1E3779B97F4A7C15  # from one token's key to the next: so far that their ranges of key + id do not overlap
_BITS = 23  # the most for which every integer plus 0.5 is a distinct float32


@dataclass(frozen=True)
class GeneratorNoise:
    """Noise source with the V numbers `torch.multinomial` takes from a generator; None: torch's default one."""

    generator: torch.Generator | None = None


class SeededNoise:
    """Noise that hashes the seed, the number of tokens sampled before, and the id: the same on every device."""

    def __init__(self, seed: int) -> None:
        self._key = derive_seed(seed, "noise")

    def next_key(self) -> int:
        """Advance to the next token and return the key of its noise, an int64."""
        self._key = following(self._key)
        return self._key


def following(key: int) -> int:
    """Return the key of the token after the one with this key: key + FAR, wrapped to int64."""
    return (key + FAR + (1 << 63)) % (1 << 64) - (1 << 63)


Source = GeneratorNoise | SeededNoise


@dataclass(frozen=True)
class Drawn:
    """Noise of B rows for one token: `numbers` (B, V) from generators, or `keys` (B,) of hashed noise."""

    V: int
    numbers: torch.Tensor | None = None
    keys: torch.Tensor | None = None

    def of(self, rows: torch.Tensor | slice, ids: torch.Tensor | None) -> torch.Tensor:
        """Return the noise (b, k) of these rows for their ids (b, k), or (b, V) for all ids if None."""
        if self.numbers is not None:
            return self.numbers[rows] if ids is None else self.numbers[rows].gather(-1, ids)
        assert self.keys is not None
        keys = self.keys[rows][:, None]
        return _hashed(keys, torch.arange(self.V, device=keys.device) if ids is None else ids)


def _hashed(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    kernels = dispatch.decoding_kernels(keys)
    if kernels is not None:
        noise: torch.Tensor = kernels.hashed_noise(keys[:, 0], ids, bits=_BITS)
        return noise
    bits = mixed(keys + ids) & (1 << _BITS) - 1
    return -((bits + 0.5) * 0.5**_BITS).log()


def draw_noise(sources: Mapping[int, Source], *, rows: int, V: int, device: torch.device) -> Drawn:
    """Return noise for one token of the first `rows` rows, of each in `sources`: all have seeds, or all generators."""
    if all(isinstance(source, SeededNoise) for source in sources.values()):
        return Drawn(V, keys=torch.tensor(next_keys(sources, rows=rows), device=device))
    numbers = torch.ones(rows, V)  # in the CPU's memory
    for row, source in sources.items():
        assert isinstance(source, GeneratorNoise), "some rows have seeds, and others generators"
        numbers[row].exponential_(generator=source.generator)
    return Drawn(V, numbers=numbers.to(device))


def next_keys(sources: Mapping[int, Source], *, rows: int) -> list[int]:
    """Return the next key of each row with SeededNoise, 0 for the others."""
    keys = [0] * rows
    for row, source in sources.items():
        if isinstance(source, SeededNoise):
            keys[row] = source.next_key()
    return keys


_ROOM = torch.finfo(torch.float32)
_PART = 1024  # columns of logits per part in topk_of_parts
# Beyond these limits float32 logits could overflow, and a row with such logits fails. A model's own are some tens.
REPETITION_PENALTIES = (0.01, 100.0)
_MOST_ADDED = 1000.0  # to a logit, by a penalty or a bias


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of one row.

    They act in this order. `repetition_penalty` divides the positive logits of ids in the prompt or the generated text
    and multiplies the negative ones; `presence_penalty` is subtracted once from ids that were generated, and
    `frequency_penalty` once per occurrence; `logit_bias` is added to the ids it names. Then top-k, temperature (0 is
    greedy), top-p (smallest set of tokens with this total probability), and min-p (tokens with at least this
    probability relative to the most probable one).
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
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be >= 0 and finite, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
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
SAMPLING = Sampling(temperature=0.8, top_k=50)  # of chats: conservative, but not deterministic


@dataclass(frozen=True)
class Kind:
    """Kind of sampling shared by rows that are sampled together: everything that decides which operations run."""

    sampled: bool  # False: all rows are greedy
    k: int | None = None  # number of most probable ids to sort and sample from; None: all, unsorted
    top_p: bool = False
    min_p: bool = False
    some_greedy: bool = False

    def ids(self, logits: torch.Tensor, settings: torch.Tensor, noise: Callable[..., torch.Tensor]) -> torch.Tensor:
        """Sample ids (b,) from logits (b, V) with `settings` (b, 4) of `_settings`; -1 where logits are NaN or +inf.

        `noise` returns the noise of given ids (b, k), or of all V for None.
        """
        if not self.sampled:
            return _largest(logits)[:, 0]
        temperature, top_p, min_p, greedy = settings.split(1, dim=-1)
        if self.k is None:
            indices = None
            # Subtract the maximum first: a tiny temperature must not overflow to inf - inf.
            weights = ((logits - logits.amax(dim=-1, keepdim=True)) / temperature).exp_()
        else:
            values, indices = _topk(logits, self.k)
            weights = ((values - values[:, :1]) / temperature).exp_()
            if self.top_p:
                sums = weights.cumsum(dim=-1)
                dropped = sums - weights >= top_p * sums[:, -1:]
                dropped[:, 0] = False  # keep the most probable id, even if top_p underflows in float32
                weights.masked_fill_(dropped, 0.0)
        if self.min_p:
            weights.masked_fill_(weights < min_p, 0.0)
        best, places = (weights / noise(indices)).max(dim=-1, keepdim=True)
        ids = (places if indices is None else indices.gather(-1, places)).masked_fill_(best.isnan(), -1)
        if self.some_greedy:
            ids = torch.where(greedy > 0, _largest(logits), ids)
        return ids[:, 0]


def _largest(logits: torch.Tensor) -> torch.Tensor:
    """Return the id of the largest logit of each row, (b, 1); -1 where it is not finite."""
    ids = logits.argmax(dim=-1, keepdim=True)
    return ids.masked_fill_(~logits.gather(-1, ids).isfinite(), -1)


def _topk(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k largest logits of each row (b, V), in descending order, and their ids, (b, k) each."""
    if logits.is_cuda and logits.shape[1] >= 4 * _PART and k <= _PART // 2:
        return topk_of_parts(logits, k)
    return logits.topk(k, dim=-1)


def topk_of_parts(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `_topk` of parts of each row, then of their results, as a GPU would take one thread block per row."""
    b, V = logits.shape
    parts = F.pad(logits, (0, -V % _PART), value=float("-inf")).view(b, -1, _PART)
    values, indices = parts.topk(k, dim=-1, sorted=False)
    indices += torch.arange(0, parts.shape[1] * _PART, _PART, device=logits.device)[:, None]
    values, places = values.flatten(1).topk(k, dim=-1)
    return values, indices.flatten(1).gather(-1, places)


class Draw:
    """Batched sampler with the settings of B slots (None: empty slot), rebuilt when a row comes or goes."""

    def __init__(self, samplings: Sequence[Sampling | None], *, V: int, device: torch.device) -> None:
        self.sampled = [row for row, s in enumerate(samplings) if s is not None and s.temperature > 0]
        drawn = [s for s in samplings if s is not None and s.temperature > 0]
        # Group rows by k. One top-k with the largest k would break ties differently (in bf16 logits are often equal),
        # and a row's tokens would depend on its neighbours' k.
        by_k = sorted(self.sampled, key=lambda row: _top_ids(samplings[row], V) or 0)
        parts = [(k, list(rows)) for k, rows in groupby(by_k, key=lambda row: _top_ids(samplings[row], V))]
        if len(parts) <= 1:  # sample all slots together; ids of empty slots are ignored
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
        """Return the kind shared by all rows; None if they are sampled in groups."""
        return self._parts[0][0] if len(self._parts) == 1 else None

    def ids(self, logits: torch.Tensor, noise: Drawn) -> torch.Tensor:
        """Sample ids (B,) from logits (B, V); -1 where logits are NaN or +inf. Greedy rows ignore their noise."""
        if self.kind is not None:
            return self.kind.ids(logits, self._there, partial(noise.of, slice(None)))
        ids = logits.new_zeros(len(logits), dtype=torch.int64)
        for kind, rows in self._parts:
            ids[rows] = kind.ids(logits[rows], self._there[rows], partial(noise.of, rows))
        return ids


def _top_ids(sampling: Sampling | None, V: int) -> int | None:
    """Return how many of the most probable ids a row samples from; None if it needs no sorting."""
    assert sampling is not None
    if sampling.top_k is None:
        return None if sampling.top_p in (None, 1.0) else V
    return min(sampling.top_k, V)


def _settings(sampling: Sampling) -> list[float]:
    """Return [temperature, top_p, min_p, 1.0 if greedy else 0.0]."""
    # Clamp to float32's range: as 0 or inf the temperature would give 0 / 0 or -inf / inf, which is NaN.
    temperature = min(max(sampling.temperature, _ROOM.tiny), _ROOM.max)
    # top_p = 1 must keep everything, but float32 sums may reach 1 before the last id.
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


Logprobs = tuple[float, tuple[tuple[int, float], ...]]  # of an id, and of the most probable ids with theirs, in nats


def score_ids(logits: torch.Tensor, ids: torch.Tensor, *, top: int) -> list[Logprobs]:
    """Return, for logits (b, V) and ids (b,), the log probabilities of each id and of the `top` most probable ones."""
    logprobs = logits.float().log_softmax(dim=-1)
    own = logprobs.gather(-1, ids[:, None]).flatten().tolist()
    values, best = (part.tolist() for part in logprobs.topk(min(top, logprobs.shape[-1])))
    tops = (tuple(zip(*pair, strict=True)) for pair in zip(best, values, strict=True))
    return list(zip(own, tops, strict=True))


_NONE = (1.0, 0.0, 0.0)  # repetition, presence, frequency


class Penalties:
    """Token counts, logit biases and penalties of each row, allocated when a row first needs them.

    They are applied to all rows at once: dividing by 1 and subtracting 0 leaves a logit the same to the bit.
    """

    def __init__(self, *, rows: int, V: int, device: torch.device) -> None:
        self._shape, self._device = (rows, V), device
        self._asking: set[int] = set()
        self._held: dict[str, torch.Tensor] = {}

    def begin(self, row: int, sampling: Sampling, prompt: Sequence[int]) -> None:
        """Set up a row for these settings; raise if `logit_bias` names an id outside the vocabulary."""
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
        """Reset a row to no penalties."""
        if row in self._asking:
            self._asking.remove(row)
            self._held["bias"][row], self._held["how"][row] = 0, self._numbers(_NONE)

    def swap(self, row: int, other: int) -> None:
        """Swap the state of two rows."""
        if self._asking & {row, other}:
            for held in self._held.values():
                held[[row, other]] = held[[other, row]]
            self._asking = {{row: other, other: row}.get(asking, asking) for asking in self._asking}

    @property
    def asked(self) -> bool:
        return bool(self._asking)

    def applied(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits (B, V) of the first B rows after penalties and biases."""
        if not self._asking:
            return logits
        read, written, bias, how = (held[: len(logits)] for held in self._held.values())
        repetition, presence, frequency = how.split(1, dim=-1)
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(read + written > 0, repeated, logits)
        return logits - presence * (written > 0) - frequency * written + bias

    def count(self, rows: Sequence[int], ids: Sequence[int]) -> None:
        """Count the token that each of these rows just generated, ids[row]."""
        if self._asking and rows:
            places = self._ids(rows), self._ids(ids[row] for row in rows)
            self._held["written"].index_put_(places, self._numbers([1.0]), accumulate=True)

    def _ids(self, ids: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(ids), dtype=torch.int64, device=self._device)

    def _numbers(self, numbers: Iterable[float]) -> torch.Tensor:
        return torch.tensor(list(numbers), dtype=torch.float32, device=self._device)
