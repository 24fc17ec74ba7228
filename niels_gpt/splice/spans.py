"""Selection of documents, their spans and offsets in the context window (frame), and quotas of examples per document.

Letters: lengths in tokens are L of the document, S of the frame and K of a full span; t is a span's start in the
document, s its offset in the frame.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from niels_gpt.config import INT64, Count, Section, check_value, settings

# Sampling quotas: how many examples each document gets, and which of its spans. Deterministic, without random numbers.

BalanceMode = Literal["by_temperature", "by_coverage", "by_document"]
_TIE = 1e-9  # differences below this count as ties, so that floating-point noise does not decide


def edge_weights(L: int, K: int, alpha: float) -> np.ndarray:
    """Return the weights of the starts 0..L-K: (K/d)^alpha, d being the distance to the nearer end, 1 to K.

    They counteract that tokens near the ends of a document are in fewer spans.
    """
    t = np.arange(L - K + 1)
    distance = np.minimum(np.minimum(t + 1, L - K - t + 1), K)
    return (K / np.maximum(distance, 1)) ** alpha


def quotas(
    lengths: Sequence[int], *, balance_mode: str = "by_temperature", balance_tau: float = 1.0, epoch_length: int
) -> list[int]:
    """Return examples per document, proportional to length^tau, that sum to `epoch_length` by largest remainders."""
    tau = temperature(balance_mode, balance_tau)
    weights = [float(length) ** tau for length in lengths]
    exact = np.array([epoch_length * weight / sum(weights) for weight in weights])
    whole = np.floor(exact + _TIE).astype(np.int64)
    remainders = np.round((exact - whole) / _TIE).astype(np.int64)
    whole[np.argsort(-remainders, kind="stable")[: epoch_length - int(whole.sum())]] += 1
    return whole.tolist()


def temperature(balance_mode: str, balance_tau: float) -> float:
    """Return the exponent tau of a balance mode; raise ValueError for an unknown mode or a non-finite tau."""
    check_value("balance_mode", balance_mode, BalanceMode)
    if not np.isfinite(balance_tau):
        raise ValueError(f"balance_tau must be a finite number, got {balance_tau}")
    return {"by_temperature": balance_tau, "by_coverage": 1.0, "by_document": 0.0}[balance_mode]


def quantile_indices(n: int, Q: int, weights: Sequence[float] | np.ndarray | None = None) -> np.ndarray:
    """Return Q of n items, ascending: for k = 0..Q-1 the first whose cumulative share exceeds (k + 1/2)/Q."""
    k = np.arange(Q, dtype=np.int64)
    if weights is None:
        return (2 * k + 1) * n // (2 * Q)
    cumulative = np.cumsum(np.asarray(weights, dtype=np.float64))
    found = np.searchsorted(cumulative / cumulative[-1], (k + 0.5) / Q + _TIE, side="right")
    return np.minimum(found, n - 1)


@settings
class SpanRules:
    """Rules for spans and offsets; `mode: slide` is coverage_balanced with K = S, without adaptive_k."""

    S: Annotated[int, Ge(2), "tokens of a frame"]
    mode: Annotated[Literal["splice", "slide"], "slide: spans as long as the frame, at every start"] = "splice"
    content_start_mode: Annotated[
        Literal["anchor_start", "slide_within", "cyclic_roll", "coverage_balanced"],
        "where spans start, and how often each token is seen",
    ] = "coverage_balanced"
    content_length: Annotated[Annotated[int, Ge(2), INT64] | None, "tokens of a span; null: as many as fit"] = None
    content_stride: Annotated[Count, "tokens from one start to the next"] = 1
    offset_stride: Annotated[Count, "places from one offset in the frame to the next"] = 1
    offset_bound: Annotated[Literal["tight", "loose"], "loose: the frame's end may cut a span"] = "tight"
    min_copy_len: Annotated[int, Ge(2), INT64, "the shortest span that is trained on"] = 2
    alpha: Annotated[float, Ge(0), "how much more often spans near the ends are seen; 0: no more"] = 0.0
    adaptive_k: Annotated[bool, "a document shorter than a span is used whole, not skipped"] = True
    include_tail: Annotated[bool, "also the last span where the stride passes over it"] = False
    suffix_starts: Annotated[bool, "also spans that begin in the last tokens and end with the document"] = False
    offset_jitter: Annotated[int, Ge(0), INT64, "places a span may lie left of flush right, changing by epoch"] = 0
    jitter_mode: Annotated[Literal["uniform", "low_discrepancy"], "how those places are taken in turn"] = "uniform"

    def __post_init__(self) -> None:
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
        """Coverage-balanced: one pair per start, flush right in the frame before jitter."""
        return self.mode == "slide" or self.content_start_mode == "coverage_balanced"

    @property
    def cyclic(self) -> bool:
        """Spans wrap around from the document's end to its beginning."""
        return self.content_start_mode == "cyclic_roll" and not self.balanced


@dataclass(frozen=True)
class Spans:
    """All pairs (t, s) of one document, sorted by t, then s, and computed from their number without a list."""

    L: int
    rules: SpanRules

    @cached_property
    def K(self) -> int | None:
        """Tokens of a full span; None for a document that is too short and skipped."""
        rules, wanted = self.rules, min(self.rules.content_length or self.rules.S, self.rules.S)
        if rules.mode == "slide":
            wanted = rules.S
        strict = rules.mode == "slide" or (rules.balanced and not rules.adaptive_k and rules.content_length is not None)
        K = min(wanted, self.L)
        return None if rules.min_copy_len > K or (strict and wanted > self.L) else K

    @cached_property
    def starts(self) -> np.ndarray:
        """Starts t of the spans, ascending; empty for a skipped document."""
        rules, K = self.rules, self.K
        if K is None:
            return np.empty(0, dtype=np.int64)
        if not rules.balanced:
            # A span of slide_within ends with the document at the latest; that of cyclic_roll wraps around.
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
        """Length in tokens of the span at each start, before truncation by the frame's end."""
        K = self.K or 0
        if self.rules.cyclic:
            return np.full(len(self.starts), K)
        return np.minimum(K, self.L - self.starts)

    @cached_property
    def _ends(self) -> np.ndarray:
        """Cumulative number of pairs up to and including each start."""
        rules = self.rules
        if rules.balanced:
            return np.arange(1, len(self.starts) + 1)
        room = rules.S - (self.spans if rules.offset_bound == "tight" else np.full_like(self.spans, rules.min_copy_len))
        return np.cumsum(room // rules.offset_stride + 1)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @cached_property
    def weights(self) -> np.ndarray | None:
        """Edge weights of the starts; None if alpha is 0."""
        if not self.rules.alpha or self.K is None:
            return None
        return edge_weights(self.L, self.K, self.rules.alpha)[self.starts]

    def at(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (t, s, tokens of the span) of the pairs with these numbers; balanced ones are flush right."""
        which = np.searchsorted(self._ends, numbers, side="right")
        t, spans = self.starts[which], self.spans[which]
        if self.rules.balanced:
            return t, self.rules.S - spans, spans
        s = (numbers - np.where(which > 0, self._ends[which - 1], 0)) * self.rules.offset_stride
        return t, s, np.minimum(spans, self.rules.S - s)


def validation_grid(L: int, S: int, content_length: int | None = None) -> list[tuple[int, int]]:
    """Return a fixed set of (t, s) for validation: up to 3 starts times 3 offsets (first, middle, last)."""
    K = min(content_length or S, S, L)

    def three(last: int) -> list[int]:
        return sorted({0, (last + 1) // 2, last})

    return [(t, s) for t in three(L - K) for s in three(S - K)]


# Selection of the documents to train on, by their lengths in tokens.

SelectMode = Literal["first", "longest", "shortest", "random"]


class SelectionRules(Section):
    """Parameters for the documents to memorize, and how often each is seen."""

    dataset_name: Annotated[str, "source of the documents to memorize"]
    num_docs: Annotated[Count, "documents"] = 1
    min_doc_length: Annotated[Count | None, "shortest document to choose, in tokens"] = None
    max_doc_length: Annotated[Count | None, "longest document to choose, in tokens"] = None
    doc_select_mode: Annotated[SelectMode, "which of those of allowed length"] = "longest"
    doc_index: Annotated[Annotated[int, Ge(0), INT64] | None, "one document by number, for num_docs: 1"] = None
    strict_num_docs: Annotated[bool, "false fills up with the longest where too few are of that length"] = True
    restrict_to_training_subset: Annotated[
        bool, "true: only documents that pretraining samples, within the source's budget.max_train_tokens"
    ] = False
    balance_mode: Annotated[BalanceMode, "shares of the documents: by length to the power of tau, by length, equal"] = (
        "by_temperature"
    )
    balance_tau: Annotated[float, "the power in by_temperature"] = 1.0
    # The order of an epoch is an array in memory, 8 bytes per example.
    epoch_length: Annotated[Annotated[int, Ge(1), Le(10**8)] | None, "examples an epoch; null: every span once"] = None
    shuffle: Annotated[bool, "another order in every epoch"] = True


def select_documents(
    lengths: Sequence[int],
    *,
    n: int,
    mode: str,
    min_len: int | None = None,
    max_len: int | None = None,
    doc_index: int | None = None,
    dataset_name: str = "",
    strict_num_docs: bool = True,
) -> tuple[list[int], str]:
    """Return (rows, reason): n rows by the policy `mode` among nonempty documents of min_len to max_len tokens.

    A `doc_index` of allowed length is selected directly. If too few documents are allowed, n = 1 falls back to the
    longest document, and n > 1 raises, or with strict_num_docs=False fills up with the longest others.
    """
    check_value("doc_select_mode", mode, SelectMode)
    check_doc_index(n, doc_index)
    filled = [row for row, length in enumerate(lengths) if length > 0]
    allowed = [row for row in filled if (min_len or 0) <= lengths[row] <= (max_len or math.inf)]
    rejected = ""
    if doc_index is not None:
        if not 0 <= doc_index < len(lengths):
            raise ValueError(f"doc_index out of range: {doc_index} of {len(lengths)} documents")
        if doc_index in allowed:
            return [doc_index], "doc_index"
        rejected = "doc_index_rejected_"
    if not filled:
        raise ValueError("there is no document with a token in it: choose another source")
    chosen = _in_order(allowed, mode, lengths, dataset_name)[:n]
    if len(chosen) == n:
        return chosen, f"{rejected}policy"
    others = _in_order(sorted(set(filled) - set(allowed)), "longest", lengths, dataset_name)
    if n == 1:
        return others[:1], f"{rejected}fallback_longest"
    if strict_num_docs or len(chosen) + len(others) < n:
        raise ValueError(
            f"only {len(chosen)} of {n} documents match min_doc_length={min_len} and max_doc_length={max_len}: widen "
            "them, lower num_docs, or set strict_num_docs to false"
        )
    return [*chosen, *others[: n - len(chosen)]], "backfilled_longest"


def within_first_tokens(lengths: Sequence[int], tokens: int) -> list[int]:
    """Return the lengths, with 0 (never selected) for documents that do not lie wholly in the first `tokens` tokens."""
    # Sequences of 1 token: the token budget ends with a document, not with a frame.
    eligible = set(training_subset(lengths, S=1, max_train_batches=tokens, initial_batch_size=1)[1])
    return [length if row in eligible else 0 for row, length in enumerate(lengths)]


def check_doc_index(n: int, doc_index: int | None) -> None:
    """Raise ValueError if `doc_index` is given for more than one document."""
    if doc_index is not None and n != 1:
        raise ValueError(f"doc_index names one document, num_docs is {n}: leave one of them out")


def _in_order(rows: Iterable[int], mode: str, lengths: Sequence[int], dataset_name: str) -> list[int]:
    """Sort ascending rows by the policy `mode`; "random" hashes the row, keyed with the dataset's name."""
    if mode == "random":
        key = hashlib.blake2b(dataset_name.encode(), digest_size=8).digest()
        return sorted(rows, key=lambda row: hashlib.blake2b(row.to_bytes(8, "little"), key=key, digest_size=8).digest())
    sign = {"first": 0, "longest": -1, "shortest": 1}[mode]
    return sorted(rows, key=lambda row: sign * lengths[row])


def training_subset(
    lengths: Sequence[int],
    *,
    S: int,
    max_train_batches: int | None = None,
    initial_batch_size: int | None = None,
    num_validation_sequences: int = 0,
    experiment_budget: float | None = None,
    target_budget: float | None = None,
) -> tuple[int, list[int]]:
    """Return (cutoff_tokens, rows): the rows that lie wholly in the first tokens, up to what a training run reads.

    That part is counted in sequences of S tokens: all of them times experiment_budget / target_budget, less
    num_validation_sequences, and at most max_train_batches batches of initial_batch_size.
    """
    sequences = sum(lengths) // S
    if experiment_budget is not None and target_budget is not None:
        sequences = int(sequences * experiment_budget / target_budget)
    sequences -= num_validation_sequences
    if max_train_batches is not None:
        if initial_batch_size is None:
            raise ValueError("max_train_batches counts batches of initial_batch_size sequences: give that, too")
        sequences = min(sequences, max_train_batches * initial_batch_size)
    cutoff = max(0, sequences) * S
    rows: list[int] = np.flatnonzero(np.cumsum(lengths) <= cutoff).tolist()
    if not rows:
        raise ValueError(
            f"no document ends within the first {cutoff} tokens that are trained on: train on more of them"
        )
    return cutoff, rows
