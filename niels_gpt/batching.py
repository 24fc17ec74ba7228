"""Batches from a mix of sources: each row draws its source, then its place, independently of all others.

The order of the draws is fixed (one multinomial for the batch, then one randint a row), so a seed always means the
same batch, however many rows are drawn at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from niels_gpt.cache.windows import TokenStream, split_targets

BytesSources = dict[str, bytes]  # the seed's: a byte stream a source
Sources = Mapping[str, bytes | TokenStream]


@dataclass(frozen=True)
class Draw:
    """Where the rows of a batch come from: row i is window `windows[i]` of source `names[choices[i]]`."""

    names: tuple[str, ...]
    choices: np.ndarray
    windows: np.ndarray

    def take(self, rows: slice) -> Draw:
        """Some of the rows."""
        return replace(self, choices=self.choices[rows], windows=self.windows[rows])

    def counts(self) -> dict[str, int]:
        """Rows drawn from each source."""
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
    """(x, y), each (B, T) int64 on `device`, with y one token ahead of x.

    p: probability of each source; its keys are those of `sources` and it sums to 1.
    """
    draw = draw_rows(sources, p=p, B=B, T=T, generator=generator)
    return split_targets(gather_rows(sources, draw, T=T), device=device)


def draw_rows(
    sources: Sources,
    *,
    p: Mapping[str, float],
    B: int,
    T: int,
    generator: torch.Generator | None = None,
) -> Draw:
    """Draw B rows, sources taken in sorted order."""
    if set(p) != set(sources):
        without_p, without_source = sorted(set(sources) - set(p)), sorted(set(p) - set(sources))
        raise ValueError(f"p and sources differ: without a probability {without_p}, without a source {without_source}")
    if not abs(sum(p.values()) - 1.0) <= 1e-6 or min(p.values()) < 0:  # so written that NaN is refused, too
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
    """What `torch.randint(0, bound, (1,))` gives for one bound after the other, at the price of one call.

    Below 2**28 such a call takes the generator's next 32 bits modulo its bound; an int64 of full range is two of them.
    """
    pairs = 0 if bounds.max(initial=0) >= 2**28 else len(bounds) // 2
    bits = torch.empty(pairs, dtype=torch.int64).random_(-(2**63), None, generator=generator).numpy().view(np.uint64)
    raw = np.stack((bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)), axis=1).reshape(-1).astype(np.int64)
    rest = [int(torch.randint(0, int(bound), (1,), generator=generator)) for bound in bounds[2 * pairs :]]
    return np.concatenate((raw % bounds[: 2 * pairs], np.array(rest, dtype=np.int64)))


def gather_rows(sources: Sources, draw: Draw, *, T: int) -> torch.Tensor:
    """The drawn windows: (B, T+1) int64 on the CPU."""
    out = np.empty((len(draw.windows), T + 1), dtype=np.int64)
    for i, name in enumerate(draw.names):
        rows = draw.choices == i
        if rows.any():
            out[rows] = TokenStream.of(sources[name]).gather(draw.windows[rows], T)
    return torch.from_numpy(out)


def gather_segments(sources: Sources, draw: Draw, *, T: int) -> torch.Tensor | None:
    """Which document of its row each input is of, (B, T), as far as streams know theirs; None if none does."""
    out = None
    for i, name in enumerate(draw.names):
        rows = draw.choices == i
        segments = TokenStream.of(sources[name]).segments(draw.windows[rows], T)
        if segments is not None:
            out = np.zeros((len(draw.windows), T), dtype=np.int64) if out is None else out
            out[rows] = segments
    return None if out is None else torch.from_numpy(out)
