"""Which spans of a document may be placed where in a frame.

Letters: L length of the document, S of the frame, K of the content; t where a span starts in the document, s where it
is put in the frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from niels_gpt.splice.quotas import edge_weights

MODES = ("splice", "slide")
CONTENT_START_MODES = ("anchor_start", "slide_within", "cyclic_roll", "coverage_balanced")
OFFSET_BOUNDS = ("tight", "loose")
JITTER_MODES = ("uniform", "low_discrepancy")


@dataclass(frozen=True)
class SpanRules:
    """The seed's parameters, by its names. `mode: slide` is coverage_balanced with K = S and no adapting."""

    S: int
    mode: str = "splice"
    content_start_mode: str = "coverage_balanced"
    content_length: int | None = None
    content_stride: int = 1
    offset_stride: int = 1
    offset_bound: str = "tight"
    min_copy_len: int = 2
    alpha: float = 0.0
    adaptive_k: bool = True
    include_tail: bool = False
    suffix_starts: bool = False
    offset_jitter: int = 0
    jitter_mode: str = "uniform"

    def __post_init__(self) -> None:
        for name, known in (
            ("mode", MODES),
            ("content_start_mode", CONTENT_START_MODES),
            ("offset_bound", OFFSET_BOUNDS),
            ("jitter_mode", JITTER_MODES),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        for name, least in (
            ("S", 2),
            ("content_stride", 1),
            ("offset_stride", 1),
            ("min_copy_len", 2),
            ("offset_jitter", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.content_length is not None and self.content_length < 2:
            raise ValueError(
                f"content_length must be at least 2 (or null for all that fits), got {self.content_length}"
            )
        if not (np.isfinite(self.alpha) and self.alpha >= 0):
            raise ValueError(f"alpha must be a number >= 0, got {self.alpha}")
        for name in ("alpha", "include_tail", "suffix_starts", "offset_jitter"):
            if getattr(self, name) and not self.balanced:
                raise ValueError(
                    f"{name} goes with content_start_mode coverage_balanced only: use that, or leave it out"
                )
        if self.alpha and self.suffix_starts:
            raise ValueError(
                "alpha and suffix_starts exclude each other: an edge has no weight once spans reach past it"
            )

    @property
    def balanced(self) -> bool:
        return self.mode == "slide" or self.content_start_mode == "coverage_balanced"


@dataclass(frozen=True)
class Spans:
    """Every (t, s) of one document, t ascending outside and s inside, found by number without a list of them."""

    L: int
    rules: SpanRules

    @cached_property
    def K(self) -> int | None:
        """Tokens of a full span; None for a document that is left out."""
        rules, wanted = self.rules, min(self.rules.content_length or self.rules.S, self.rules.S)
        if rules.mode == "slide":
            wanted = rules.S
        strict = rules.mode == "slide" or (rules.balanced and not rules.adaptive_k and rules.content_length is not None)
        K = min(wanted, self.L)
        return None if rules.min_copy_len > K or (strict and wanted > self.L) else K

    @cached_property
    def starts(self) -> np.ndarray:
        rules, K = self.rules, self.K
        if K is None:
            return np.empty(0, dtype=np.int64)
        if not rules.balanced:
            # A span of slide_within ends with the document; that of a roll goes on at its beginning.
            last = {"anchor_start": 0, "slide_within": self.L - rules.min_copy_len, "cyclic_roll": self.L - 1}
            return np.arange(0, last[rules.content_start_mode] + 1, rules.content_stride)
        starts = np.arange(0, self.L - K + 1, rules.content_stride)
        if rules.include_tail and starts[-1] != self.L - K:
            starts = np.append(starts, self.L - K)
        if rules.suffix_starts:
            beyond = np.arange(0, self.L - rules.min_copy_len + 1, rules.content_stride)
            starts = np.append(starts, beyond[beyond > self.L - K])
        return starts

    @cached_property
    def spans(self) -> np.ndarray:
        """Tokens from each start on, if the frame's end does not cut them."""
        K = self.K or 0
        if self.rules.content_start_mode == "cyclic_roll" and not self.rules.balanced:
            return np.full(len(self.starts), K)
        return np.minimum(K, self.L - self.starts)

    @cached_property
    def _ends(self) -> np.ndarray:
        """Pairs up to and with each start."""
        rules = self.rules
        if rules.balanced:
            return np.arange(1, len(self.starts) + 1)
        room = rules.S - (self.spans if rules.offset_bound == "tight" else np.full_like(self.spans, rules.min_copy_len))
        return np.cumsum(room // rules.offset_stride + 1)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @cached_property
    def weights(self) -> np.ndarray | None:
        """Of the starts, where edges are to be seen more often."""
        if not self.rules.alpha or self.K is None:
            return None
        return edge_weights(self.L, self.K, self.rules.alpha)[self.starts]

    def at(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(t, s) of the pairs with these numbers; balanced ones lie flush right."""
        which = np.searchsorted(self._ends, numbers, side="right")
        t = self.starts[which]
        if self.rules.balanced:
            return t, self.rules.S - self.spans[which]
        before = np.where(which > 0, self._ends[which - 1], 0)
        return t, (numbers - before) * self.rules.offset_stride


def validation_grid(L: int, S: int, content_length: int | None = None) -> list[tuple[int, int]]:
    """Up to three starts by three offsets, ends included: a fixed set to validate on."""
    K = min(content_length or S, S, L)

    def three(last: int) -> list[int]:
        return sorted({0, (last + 1) // 2, last})

    return [(t, s) for t in three(L - K) for s in three(S - K)]
