"""Datasets of spliced documents: examples, epochs, and their distribution over ranks.

An epoch is a function from an example's number to (document, t, s), not a list. For the letters see `spans.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from niels_gpt.splice.spans import SpanRules, Spans, quantile_indices, quotas, temperature


class Example(dict[str, Any]):
    """Tensors by key or attribute: tokens, targets, loss_mask, segment_ids, position_ids, doc_idx, t, s, copy_len."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


def make_example(
    docs: Sequence[np.ndarray] | Sequence[Sequence[int]],
    doc_idx: int,
    t: int,
    s: int,
    *,
    S: int,
    pad_id: int,
    content_length: int | None = None,
    cyclic: bool = False,
    trailing_segment: int = 1,
) -> Example:
    """Return a frame of S tokens with docs[doc_idx][t:] at s, limited by content_length, the document and the frame.

    Any legal pair is accepted, even if the frame's end truncates the span. The padding after the span is in segment
    `trailing_segment`, by default the span's own; causal attention hides it from the document either way.
    """
    L = len(docs[doc_idx])
    if not (0 <= t < L and 0 <= s < S):
        raise ValueError(f"t={t} and s={s} must lie within the document's {L} and the frame's {S} tokens")
    ends = L if cyclic else L - t
    copy_len = min(content_length or S, ends, S - s)
    triples = np.array([[doc_idx, t, s]])
    batch = collate(docs, triples, np.array([copy_len]), S=S, pad_id=pad_id, layout="frame", cyclic=cyclic)
    batch["segment_ids"][0, s + copy_len :] = trailing_segment
    return Example({name: value[0] for name, value in batch.items()})


def collate(
    docs: Sequence[np.ndarray] | Sequence[Sequence[int]],
    triples: np.ndarray,
    copy_lens: np.ndarray,
    *,
    S: int,
    pad_id: int,
    layout: str,
    cyclic: bool = False,
) -> Example:
    """Collate (doc_idx, t, s) triples (B, 3) into a batch: tokens, targets shifted by one, loss mask, ids.

    layout="frame": (B, S), each span at its offset s; the padding to its left is in segment 0, the span in segment 1.
    layout="compact": (B, longest span), spans left-aligned, with the position ids they have in the frame. Plain causal
    attention then gives the same numbers, since a span never attends to what is before it.
    """
    import torch  # here, so that code that only needs span rules does not import it

    if layout not in ("compact", "frame"):
        raise ValueError(f"layout must be compact or frame, got {layout!r}")
    B, (doc_idx, t, s) = len(triples), triples.T
    frame = layout == "frame"
    width, at = (S, s) if frame else (int(copy_lens.max()), np.zeros_like(s))
    # One extra column: targets are the tokens from the second on.
    tokens = np.full((B, width + 1), pad_id, dtype=np.int64)
    for row, (doc, start, place, n) in enumerate(
        zip(doc_idx.tolist(), t.tolist(), at.tolist(), copy_lens.tolist(), strict=True)
    ):
        content = docs[doc][start : start + n]
        tokens[row, place : place + len(content)] = content
        if len(content) < n:  # cyclic_roll: wrap around to the document's beginning
            tokens[row, place + len(content) : place + n] = docs[doc][: n - len(content)]
    columns = np.arange(width)
    loss_mask = (columns >= at[:, None]) & (columns < (at + copy_lens - 1)[:, None])
    if cyclic:  # no loss for predicting the document's first token after its last
        joints = at + np.array([len(docs[doc]) for doc in doc_idx.tolist()]) - 1 - t
        loss_mask &= columns != joints[:, None]
    segment_ids = (columns >= at[:, None]).astype(np.int32)
    positions = np.broadcast_to(columns, (B, width)) if frame else np.minimum(s[:, None] + columns, S - 1)
    return Example(
        tokens=torch.from_numpy(tokens[:, :-1]),
        targets=torch.from_numpy(tokens[:, 1:]),
        loss_mask=torch.from_numpy(loss_mask),
        segment_ids=torch.from_numpy(segment_ids),
        position_ids=torch.from_numpy(positions.astype(np.int64)),
        doc_idx=torch.from_numpy(doc_idx.copy()),
        t=torch.from_numpy(t.copy()),
        s=torch.from_numpy(s.copy()),
        copy_len=torch.from_numpy(copy_lens.astype(np.int64)),
    )


def epoch_order(n: int, *, seed: int, epoch: int) -> np.ndarray:
    """Return the order of the n examples of an epoch: a permutation that is the same on all ranks."""
    import torch  # here, so that code that only needs span rules does not import it

    from niels_gpt.rng import derive_seed, make_generator

    return torch.randperm(n, generator=make_generator(derive_seed(seed, "splice epoch", epoch))).numpy()


def rank_indices(n: int, *, seed: int, epoch: int, rank: int, world_size: int) -> np.ndarray:
    """Return one rank's examples of an epoch of n, for a data loader per process: every world_size-th of the order.

    The trainer does not use this: its ranks sample the same whole batches and divide the rows of each.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..{world_size - 1}, got {rank}")
    return epoch_order(n, seed=seed, epoch=epoch)[rank::world_size]


def describe_plan(summary: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return lines that describe an epoch: at least one per document, and one for all."""
    lines = []
    for i, name in enumerate(names):
        length, quota = f"{name}: {summary['doc_lengths'][i]:,} tokens", summary["quotas"][i]
        if i not in summary["valid_docs"]:
            lines.append(f"{length}, too short for a span: not trained on")
            continue
        starts, unvisited = summary["starts_per_doc"][i], summary["unvisited_starts"][i]
        seen = "every one visited" if not unvisited else f"{unvisited:,} never visited"
        lines.append(f"{length}, K={summary['K_per_doc'][i]}, {starts:,} starts ({seen}), {quota:,} examples an epoch")
        if not quota:
            lines.append(f"{name} has no example in an epoch, and is not trained on: raise splice.epoch_length")
    lines.append(
        f"{summary['epoch_length']:,} examples an epoch in frames of {summary['S']}, "
        f"{summary['supervised_tokens_per_frame']:.1f} targets in each, jitter of {summary['effective_jitter']} places"
    )
    if summary["jitter_is_inert"]:
        lines.append(
            "offset_jitter does nothing here: spans fill the frame (K = S); lower content_length to give it room"
        )
    return lines


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: its multiples fill [0, 2**64) evenly


class MultiSpliceDocumentDataset:
    """Dataset of spans of several documents.

    `docs` are only sliced. `epoch_length`: examples per epoch; None takes as many as there are pairs (by_document: as
    if every document had as many as the one with most). `rules`: keywords of `SpanRules`.
    """

    def __init__(
        self,
        docs: Sequence[np.ndarray] | Sequence[Sequence[int]],
        *,
        S: int,
        pad_id: int,
        balance_mode: str = "by_temperature",
        balance_tau: float = 1.0,
        epoch_length: int | None = None,
        **rules: Any,
    ) -> None:
        temperature(balance_mode, balance_tau)
        if epoch_length is not None and epoch_length < 1:
            raise ValueError(f"epoch_length must be at least 1 (or null for every pair once), got {epoch_length}")
        if pad_id < 0:
            raise ValueError(f"pad_id must be an id of the vocabulary, got {pad_id}")
        self.docs, self.pad_id, self.rules = docs, pad_id, SpanRules(S=S, **rules)
        self._spans = [Spans(len(doc), self.rules) for doc in docs]
        pairs = [len(spans) for spans in self._spans]
        self.valid_docs = [i for i, count in enumerate(pairs) if count]
        if not self.valid_docs:
            raise ValueError(_why_nothing_fits([len(doc) for doc in docs], self.rules))
        by_document = balance_mode == "by_document"
        # Quotas without rounding: every pair once, or each document's pairs repeated up to the largest count.
        self._cycle = epoch_length is None and not self.rules.alpha and balance_mode != "by_temperature"
        longest = max(pairs)
        whole = len(self.valid_docs) * longest if by_document else sum(pairs)
        self.quotas = [0] * len(docs)
        shares = (
            [longest if by_document else pairs[i] for i in self.valid_docs]
            if self._cycle
            else quotas(
                [len(docs[i]) for i in self.valid_docs],
                balance_mode=balance_mode,
                balance_tau=balance_tau,
                epoch_length=epoch_length or whole,
            )
        )
        for i, share in zip(self.valid_docs, shares, strict=True):
            self.quotas[i] = share
        self._ends = np.cumsum(self.quotas)
        self._weighted = {
            i: quantile_indices(len(spans), self.quotas[i], spans.weights)
            for i, spans in enumerate(self._spans)
            if spans.weights is not None and self.quotas[i]
        }

    def __len__(self) -> int:
        """Return the number of examples in an epoch."""
        return int(self._ends[-1])

    def triples(self, epoch: int = 0) -> np.ndarray:
        """Return (doc_idx, t, s) of all examples of an epoch, (N, 3) int64, unshuffled."""
        return self._triples(np.arange(len(self)), epoch)

    def __getitem__(self, index: int) -> Example:
        """Return one example of epoch 0 in the frame layout."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        batch = self.batch(np.array([index % len(self)]), layout="frame")
        return Example({name: value[0] for name, value in batch.items()})

    def batch(self, indices: Sequence[int] | np.ndarray, *, layout: str = "compact", epoch: int = 0) -> Example:
        """Return the examples with these numbers as a batch; for `layout` see `collate`."""
        triples = self._triples(np.asarray(indices, dtype=np.int64), epoch)
        return collate(
            self.docs,
            triples,
            self._copy_lens(triples),
            S=self.rules.S,
            pad_id=self.pad_id,
            layout=layout,
            cyclic=self._cyclic,
        )

    def content(self, indices: np.ndarray, *, epoch: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return (document, number of tokens with loss) of each example, without reading its tokens."""
        triples = self._triples(np.asarray(indices, dtype=np.int64), epoch)
        return triples[:, 0], self._targets(triples)

    def summary(self) -> dict[str, Any]:
        """Return the numbers that describe the dataset: documents, spans, quotas, coverage and jitter."""
        # In a very long epoch, targets are counted in every 101st example only.
        triples = self.triples() if len(self) <= 1_000_000 else self._triples(np.arange(0, len(self), 101), 0)
        # A span can be moved left from flush right by the room that it leaves in the frame.
        room = [self.rules.S - int(self._spans[i].spans.min()) for i in self.valid_docs]
        jitter = [min(self.rules.offset_jitter, places) for places in room]
        return {
            "num_docs": len(self.docs),
            "valid_docs": list(self.valid_docs),
            "doc_lengths": [len(doc) for doc in self.docs],
            "S": self.rules.S,
            "content_length": self.rules.content_length,
            "mode": self.rules.mode if self.rules.mode == "slide" else self.rules.content_start_mode,
            "K_per_doc": [spans.K if len(spans) else None for spans in self._spans],
            "starts_per_doc": [len(spans.starts) for spans in self._spans],
            "pairs_per_doc": [len(spans) for spans in self._spans],
            "quotas": list(self.quotas),
            "docs_without_examples": [i for i in self.valid_docs if not self.quotas[i]],
            "epoch_length": len(self),
            "unvisited_starts": [len(spans.starts) - self._visited(i) for i, spans in enumerate(self._spans)],
            "supervised_tokens_per_frame": float(self._targets(triples).mean()),
            "effective_jitter": max(jitter),
            "jitter_is_inert": bool(self.rules.offset_jitter) and not any(jitter),
        }

    def _visited(self, i: int) -> int:
        """Return how many starts of document i an epoch visits."""
        spans, quota = self._spans[i], self.quotas[i]
        if i not in self._weighted and quota >= len(spans):
            return len(spans.starts)
        return len(np.unique(spans.at(self._chosen(i, np.arange(quota)))[0])) if quota else 0

    def _targets(self, triples: np.ndarray) -> np.ndarray:
        """Return the number of tokens with loss of each example: all but the last, and but the seam of a roll."""
        copied = self._copy_lens(triples)
        if not self._cyclic:
            return copied - 1
        lengths = np.array([len(doc) for doc in self.docs])[triples[:, 0]]
        return copied - 1 - (triples[:, 1] + copied > lengths)

    @property
    def longest_span(self) -> int:
        return max(spans.K or 0 for spans in self._spans)

    @property
    def _cyclic(self) -> bool:
        return self.rules.content_start_mode == "cyclic_roll" and not self.rules.balanced

    def _triples(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        doc_idx = np.searchsorted(self._ends, indices, side="right")
        out = np.empty((len(indices), 3), dtype=np.int64)
        out[:, 0] = doc_idx
        for i in np.unique(doc_idx).tolist():
            rows = doc_idx == i
            first = int(self._ends[i]) - self.quotas[i]
            numbers = self._chosen(i, indices[rows] - first)
            t, s = self._spans[i].at(numbers)
            out[rows, 1], out[rows, 2] = t, s - self._jitter(indices[rows], room=s, epoch=epoch)
        return out

    def _chosen(self, i: int, k: np.ndarray) -> np.ndarray:
        """Return the pair numbers of the k-th examples of document i."""
        pairs = len(self._spans[i])
        if self._cycle:
            return k % pairs
        if i in self._weighted:
            return self._weighted[i][k]
        return (2 * k + 1) * pairs // (2 * self.quotas[i])

    def _jitter(self, indices: np.ndarray, *, room: np.ndarray, epoch: int) -> np.ndarray:
        """Return by how many positions each example is moved left from flush right; it changes with the epoch."""
        if not self.rules.offset_jitter:
            return np.zeros_like(room)
        places = np.minimum(self.rules.offset_jitter, room) + 1
        if self.rules.jitter_mode == "uniform":
            return (indices + epoch) % places
        turn = (indices + 1 + epoch * len(self)).astype(np.uint64) * _GOLDEN
        # turn / 2**64 is a low-discrepancy sequence in [0, 1); times `places`, it is the high half of a 128-bit
        # product, computed from 32-bit halves.
        count, low, high = places.astype(np.uint64), turn & np.uint64(0xFFFFFFFF), turn >> np.uint64(32)
        return ((high * count + (low * count >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)

    def _copy_lens(self, triples: np.ndarray) -> np.ndarray:
        doc_idx, t, s = triples.T
        lengths = np.array([len(doc) for doc in self.docs])[doc_idx]
        K = np.array([spans.K or 0 for spans in self._spans])[doc_idx]
        left = lengths if self._cyclic else lengths - t
        return np.minimum(np.minimum(K, left), self.rules.S - s)


class SpliceDocumentDataset(MultiSpliceDocumentDataset):
    """Dataset of spans of one document."""

    def __init__(self, doc: np.ndarray | Sequence[int], *, S: int, pad_id: int, **rules: Any) -> None:
        super().__init__([np.asarray(doc)], S=S, pad_id=pad_id, **rules)


def _why_nothing_fits(lengths: list[int], rules: SpanRules) -> str:
    if rules.mode == "slide":
        return f"slide needs documents of S={rules.S} tokens or more, not {lengths}: use mode splice, or longer ones"
    return (
        f"no valid span: documents of {lengths} tokens, S={rules.S}, content_length={rules.content_length}, "
        f"min_copy_len={rules.min_copy_len}; choose longer documents, or lower min_copy_len or content_length"
    )
