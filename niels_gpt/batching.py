"""Random training batches from a mix of sources: each row samples its source, then its window, independently.

The order of the random numbers is fixed (one multinomial per batch, then one randint per row), so a seed always gives
the same batch, whether `_randints` makes them one by one or in bulk.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from niels_gpt.cache.windows import TokenStream, split_targets
from niels_gpt.rng import derive_seed, make_generator

BytesSources = dict[str, bytes]  # v0: source name -> its bytes, one token each
Sources = Mapping[str, bytes | TokenStream]


@dataclass(frozen=True)
class Draw:
    """Sampled origin of every row of a batch: row i is window `windows[i]` of source `names[choices[i]]`."""

    names: tuple[str, ...]
    choices: np.ndarray
    windows: np.ndarray

    def take(self, rows: slice) -> "Draw":
        """Return the selection restricted to a slice of the rows."""
        return replace(self, choices=self.choices[rows], windows=self.windows[rows])

    def counts(self) -> dict[str, int]:
        """Return the number of rows sampled from each source."""
        return dict(zip(self.names, np.bincount(self.choices, minlength=len(self.names)).tolist(), strict=True))


def get_batch(
    sources: Sources,
    *,
    p: Mapping[str, float],
    B: int,
    T: int = 256,
    device: str,
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (x, y), each `(B, T)` int64 on `device`, with y one token ahead of x.

    `p` is the probability of each source; it has the keys of `sources` and sums to 1.
    """
    draw = draw_rows(sources, p=p, B=B, T=T, generator=generator)
    return split_targets(gather_rows(sources, draw, T=T)[0], device=device)


def draw_rows(
    sources: Sources,
    *,
    p: Mapping[str, float],
    B: int,
    T: int,
    generator: torch.Generator | None = None,
) -> Draw:
    """Sample the source and window of B rows; sources are numbered in sorted order of their names."""
    if set(p) != set(sources):
        without_p, without_source = sorted(set(sources) - set(p)), sorted(set(p) - set(sources))
        raise ValueError(f"p and sources differ: without a probability {without_p}, without a source {without_source}")
    if not abs(sum(p.values()) - 1.0) <= 1e-6 or min(p.values()) < 0:  # `not <=` instead of `>` also rejects NaN
        raise ValueError(f"probabilities must be >= 0 and sum to 1.0, got {dict(p)} with sum {sum(p.values())}")
    names = tuple(sorted(sources))
    counts = [TokenStream.of(sources[name]).windows(T) for name in names]
    if min(counts) < 1:
        short = {name: len(sources[name]) for name, count in zip(names, counts, strict=True) if count < 1}
        raise ValueError(f"too short for a window of T+1 = {T + 1} tokens: {short}")
    probabilities = torch.tensor([p[name] for name in names], dtype=torch.float64)
    choices = torch.multinomial(probabilities, B, replacement=True, generator=generator).numpy()
    windows = _randints(np.array(counts)[choices], generator)
    return Draw(names=names, choices=choices, windows=windows)


def _randints(bounds: np.ndarray, generator: torch.Generator | None) -> np.ndarray:
    """Return what `torch.randint(0, bound, (1,))` gives for each bound in turn, mostly in a single call.

    For bounds below 2**28, randint takes the generator's next 32 bits modulo the bound, and a full-range int64 takes
    two such words, so n/2 int64s hold the words of n calls. If a bound is larger, all rows call randint itself.
    """
    pairs = 0 if bounds.max(initial=0) >= 2**28 else len(bounds) // 2
    bits = torch.empty(pairs, dtype=torch.int64).random_(-(2**63), None, generator=generator).numpy().view(np.uint64)
    raw = np.stack((bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)), axis=1).reshape(-1).astype(np.int64)
    rest = [int(torch.randint(0, int(bound), (1,), generator=generator)) for bound in bounds[2 * pairs :]]
    return np.concatenate((raw % bounds[: 2 * pairs], np.array(rest, dtype=np.int64)))


def in_epochs(draw: Draw, sources: Sources, *, T: int, rows_before: np.ndarray, seed: int) -> Draw:
    """Return the draw with each source's windows taken in shuffled epochs instead of at random, with replacement.

    `rows_before` has the number of rows that earlier batches took from each source. Random windows of one epoch's
    length leave out 37% of a text, which costs a pretrained model that reads it once or twice 0.01 to 0.02 bits per
    byte.
    """
    windows = np.empty_like(draw.windows)
    for i, name in enumerate(draw.names):
        count = TokenStream.of(sources[name]).windows(T)
        tiles = -(-(count - 1) // T) + 1  # in an epoch
        for place, row in enumerate(np.flatnonzero(draw.choices == i), start=int(rows_before[i])):
            epoch, tile = divmod(place, tiles)
            offset, order = _epoch_order(tiles, T, derive_seed(derive_seed(seed, "epochs", name), epoch))
            windows[row] = min(max(0, int(order[tile]) * T - offset), count - 1)
    return replace(draw, windows=windows)


@lru_cache(maxsize=32)  # an epoch or two of every source
def _epoch_order(tiles: int, T: int, seed: int) -> tuple[int, np.ndarray]:
    """Return by how much an epoch's tiles are shifted, so that other epochs cut elsewhere, and their order."""
    generator = make_generator(seed)
    return int(torch.randint(T, (1,), generator=generator)), torch.randperm(tiles, generator=generator).numpy()


def gather_rows(sources: Sources, draw: Draw, *, T: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the tokens of the sampled windows, `(B, T+1)` int64 on the CPU, and their segments for the document mask.

    Segments are the document index of each input token within its row, `(B, T)` int64; all 0 in rows of streams without
    document offsets. None if no stream has offsets.
    """
    B, separated = len(draw.windows), False
    tokens, segments = np.empty((B, T + 1), dtype=np.int64), np.zeros((B, T), dtype=np.int64)
    for i, name in enumerate(draw.names):
        stream, rows = TokenStream.of(sources[name]), draw.choices == i
        tokens[rows] = stream.gather(draw.windows[rows], T)
        if (found := stream.segments(draw.windows[rows], T)) is not None:
            segments[rows], separated = found, True
    return torch.from_numpy(tokens), torch.from_numpy(segments) if separated else None
