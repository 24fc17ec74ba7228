"""Batched sampling of the next token of many rows: settings, seeded noise and penalties.

`torch.multinomial` samples argmax(p / q), with q exponential noise from the generator. So each row's noise can come
from its own source, and the rest is one computation for all rows. The scale of p does not matter: it is replaced by
weights of which the largest is 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

from niels_gpt.model.kernels import dispatch
from niels_gpt.rng import derive_seed, mixed

FAR = 0x1E3779B97F4A7C15  # from one token's key to the next: so far that their ranges of key + id do not overlap
_BITS = 23  # the most for which every integer plus 0.5 is a distinct float32


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


# Where a row's noise comes from. A generator (None: torch's default one) gives what `torch.multinomial` takes from it.
Source = SeededNoise | torch.Generator | None


def next_noise(sources: Mapping[int, Source], *, rows: int, V: int) -> list[int] | torch.Tensor:
    """Return noise for one token of the first `rows` rows, of each in `sources`: all have seeds, or all generators.

    Seeds give a list of the keys of hashed noise, generators a tensor of its numbers, (rows, V).
    """
    keys = {row: source.next_key() for row, source in sources.items() if isinstance(source, SeededNoise)}
    if len(keys) == len(sources):
        return [keys.get(row, 0) for row in range(rows)]
    numbers = torch.ones(rows, V)
    for row, source in sources.items():
        assert not isinstance(source, SeededNoise), "some rows have seeds, and others generators"
        numbers[row].exponential_(generator=source)
    return numbers


def noise_of(noise: torch.Tensor, ids: torch.Tensor | None, *, V: int) -> torch.Tensor:
    """Return the numbers of `next_noise`, as a tensor, for ids (B, k), or (B, V) for all ids if None."""
    if noise.is_floating_point():
        return noise if ids is None else noise.gather(-1, ids)
    ids = torch.arange(V, device=noise.device) if ids is None else ids
    kernels = dispatch.decoding_kernels(noise)
    if kernels is not None:
        numbers: torch.Tensor = kernels.hashed_noise(noise, ids, bits=_BITS)
        return numbers
    bits = mixed(noise[:, None] + ids) & (1 << _BITS) - 1
    return -((bits + 0.5) * 0.5**_BITS).log()


_ROOM = torch.finfo(torch.float32)
_PART = 1024  # columns of logits per part in topk_of_parts


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of one row.

    They act in this order. `repetition_penalty` divides the positive logits of ids in the prompt or the generated text
    and multiplies the negative ones; `presence_penalty` is subtracted once from ids that were generated, and
    `frequency_penalty` once per occurrence; `logit_bias` is added to the ids it names. Then top-k, temperature (0 is
    greedy), top-p (smallest set of tokens with this total probability), and min-p (tokens with at least this
    probability relative to the most probable one). Penalties and biases that are too large for float32 logits (beyond
    the server's limits) make a row fail.
    """

    temperature: float = 0.9
    top_k: int | None = 50
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, holds, rule in (
            ("temperature", 0 <= self.temperature < float("inf"), ">= 0 and finite"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]"),
        ):
            if not holds:
                raise ValueError(f"{name} must be {rule}, got {getattr(self, name)}")

    @property
    def penalises(self) -> bool:
        """Return whether penalties or biases change the logits."""
        penalties = self.repetition_penalty - 1, self.presence_penalty, self.frequency_penalty
        return any(penalties) or bool(self.logit_bias)

    def top_ids(self, V: int) -> int | None:
        """Return how many of the most probable of V ids to sample from; None if they need no sorting."""
        if self.top_k is None:
            return V if self.top_p < 1 else None
        return min(self.top_k, V)


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

    def ids(self, logits: torch.Tensor, settings: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Sample ids (b,) from logits (b, V) with `settings` (b, 4) of `_settings`, and noise of `next_noise`.

        The id is -1 where logits are NaN or +inf. Greedy rows ignore their noise.
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
        best, places = (weights / noise_of(noise, indices, V=logits.shape[-1])).max(dim=-1, keepdim=True)
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
        # Group rows by k. One top-k with the largest k would break ties differently (in bf16 logits are often equal),
        # and a row's tokens would depend on its neighbours' k.
        by_k: dict[int | None, list[int]] = {}
        greedy = []
        for row, sampling in enumerate(samplings):
            if sampling is not None and sampling.temperature > 0:
                by_k.setdefault(sampling.top_ids(V), []).append(row)
            elif sampling is not None:
                greedy.append(row)
        groups = list(by_k.items())
        if len(groups) <= 1:  # sample all slots together; ids of empty slots are ignored
            groups = [(next(iter(by_k), None), list(range(len(samplings))))]
        elif greedy:
            groups.append((None, greedy))
        self._groups = [
            (_kind([samplings[row] for row in rows], k), torch.tensor(rows, device=device)) for k, rows in groups
        ]
        self.settings = torch.tensor([_settings(sampling or GREEDY) for sampling in samplings], device=device)

    @property
    def kind(self) -> Kind | None:
        """Return the kind shared by all rows; None if they are sampled in groups."""
        return self._groups[0][0] if len(self._groups) == 1 else None

    def ids(self, logits: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Sample ids (B,) from logits (B, V) with noise of `next_noise`; see `Kind.ids`."""
        if self.kind is not None:
            return self.kind.ids(logits, self.settings, noise)
        ids = noise.new_zeros(len(logits), dtype=torch.int64)
        for kind, rows in self._groups:
            ids[rows] = kind.ids(logits[rows], self.settings[rows], noise[rows])
        return ids


def _settings(sampling: Sampling) -> list[float]:
    """Return [temperature, top_p, min_p, 1.0 if greedy else 0.0]."""
    # Clamp to float32's range: as 0 or inf the temperature would give 0 / 0 or -inf / inf, which is NaN.
    temperature = min(max(sampling.temperature, _ROOM.tiny), _ROOM.max)
    # top_p = 1 must keep everything, but float32 sums may reach 1 before the last id.
    top_p = sampling.top_p if sampling.top_p < 1 else 2.0
    return [temperature, top_p, sampling.min_p, float(sampling.temperature == 0)]


def _kind(samplings: Sequence[Sampling | None], k: int | None) -> Kind:
    rows = [s for s in samplings if s is not None]
    drawn = [s for s in rows if s.temperature > 0]
    return Kind(
        sampled=bool(drawn),
        k=k,
        top_p=any(s.top_p < 1 for s in drawn),
        min_p=any(s.min_p > 0 for s in drawn),
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


class Penalties:
    """Penalties and biases of one row, with counts of the ids that it has read and written."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], *, V: int, device: torch.device) -> None:
        biases = sampling.logit_bias
        how = [sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty]
        self.how = torch.tensor(how, device=device)
        # Of each id: whether the prompt has it, how often it was written, and its bias.
        self.ids = torch.zeros(3, V, device=device)
        self.ids[0, torch.tensor(prompt, device=device)] = 1
        self.ids[2, torch.tensor(list(biases), dtype=torch.int64, device=device)] = torch.tensor(
            list(biases.values()), dtype=torch.float32, device=device
        )

    def count(self, id: int) -> None:
        """Count a token that the row just generated."""
        self.ids[1, id] += 1


def penalise(logits: torch.Tensor, penalties: Sequence[Penalties]) -> torch.Tensor:
    """Return logits (n, V) after the penalties and biases of n rows, all at once: a GPU's time goes to launches."""
    read, written, bias = torch.stack([row.ids for row in penalties], dim=1)
    repetition, presence, frequency = torch.stack([row.how for row in penalties], dim=1)[:, :, None]
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(read + written > 0, repeated, logits)
    return logits - presence * (written > 0) - frequency * written + bias
