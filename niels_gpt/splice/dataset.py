"""Datasets of spliced documents: examples, epochs, and how ranks share them.

An epoch is a rule from a number to (document, t, s), not a list of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from niels_gpt.splice.spans import SpanRules, Spans, quantile_indices, quotas, temperature


class Example(dict[str, Any]):
    """Tensors by name or attribute: tokens, targets, loss_mask, segment_ids, position_ids, doc_idx, t, s, copy_len."""

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
    """The frame of S tokens with docs[doc_idx][t:] at s, as far as content_length, document and frame reach.

    Any legal pair is taken, also one that the frame's end cuts short. The filler after the span is in segment
    `trailing_segment`: in the span's own, unless told otherwise. No token of the document sees it either way.
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
    """Rows of tokens, targets one ahead, and where there is a loss.

    frame: S columns, each span where it lies in its frame, filler around it in a segment of its own to the left.
    compact: only the spans, left-aligned, with the positions they have in the frame; plain causal attention gives the
    same numbers, since nothing before a span may be seen from it.
    """
    import torch  # here: who only asks for the rules of spans does not wait for it

    if layout not in ("compact", "frame"):
        raise ValueError(f"layout must be compact or frame, got {layout!r}")
    B, (doc_idx, t, s) = len(triples), triples.T
    frame = layout == "frame"
    width, at = (S, s) if frame else (int(copy_lens.max()), np.zeros_like(s))
    # One column more than needed: targets are the tokens from the second on.
    tokens = np.full((B, width + 1), pad_id, dtype=np.int64)
    for row, (doc, start, place, n) in enumerate(
        zip(doc_idx.tolist(), t.tolist(), at.tolist(), copy_lens.tolist(), strict=True)
    ):
        content = docs[doc][start : start + n]
        tokens[row, place : place + len(content)] = content
        if len(content) < n:  # a roll goes on at the document's beginning
            tokens[row, place + len(content) : place + n] = docs[doc][: n - len(content)]
    columns = np.arange(width)
    loss_mask = (columns >= at[:, None]) & (columns < (at + copy_lens - 1)[:, None])
    if cyclic:
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
    """The order in which the n examples of an epoch are read: a permutation that all ranks agree on."""
    import torch  # here: who only asks for the rules of spans does not wait for it

    from niels_gpt.rng import derive_seed, make_generator

    return torch.randperm(n, generator=make_generator(derive_seed(seed, "splice epoch", epoch))).numpy()


def rank_indices(n: int, *, seed: int, epoch: int, rank: int, world_size: int) -> np.ndarray:
    """One reader's examples of an epoch of n, for a loader in each of several processes: every world_size-th of the
    common order. (The trainer's own ranks draw whole batches alike and share out the rows of each.)"""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..{world_size - 1}, got {rank}")
    return epoch_order(n, seed=seed, epoch=epoch)[rank::world_size]


def describe_plan(summary: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """What an epoch consists of, a line a document and one for all."""
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


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: multiples of it fill [0, 2**64) evenly


class MultiSpliceDocumentDataset:
    """Spans of several documents. `rules` are SpanRules' keywords; `docs` are only sliced."""

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
        # Every pair once, or every document's pairs repeated to the length of the longest: exact, where it can be.
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
        """Examples in an epoch."""
        return int(self._ends[-1])

    def triples(self, epoch: int = 0) -> np.ndarray:
        """(N, 3) int64 of (doc_idx, t, s), in the order of the epoch before any shuffling."""
        return self._triples(np.arange(len(self)), epoch)

    def __getitem__(self, index: int) -> Example:
        """One example as a frame."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"example {index} of {len(self)}")
        batch = self.batch(np.array([index % len(self)]), layout="frame")
        return Example({name: value[0] for name, value in batch.items()})

    def batch(self, indices: Sequence[int] | np.ndarray, *, layout: str = "compact", epoch: int = 0) -> Example:
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
        """Of each example, without reading it: its document, and how many of its tokens carry loss."""
        triples = self._triples(np.asarray(indices, dtype=np.int64), epoch)
        return triples[:, 0], self._targets(triples)

    def summary(self) -> dict[str, Any]:
        """What is trained on, in numbers."""
        # Of a very long epoch, targets are counted in every 101st example.
        triples = self.triples() if len(self) <= 1_000_000 else self._triples(np.arange(0, len(self), 101), 0)
        jitter = [min(self.rules.offset_jitter, self._room(i)) for i in self.valid_docs]
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

    def _room(self, i: int) -> int:
        """How far left of flush right the shortest span of a document can go."""
        return self.rules.S - int(self._spans[i].spans.min())

    def _visited(self, i: int) -> int:
        """Starts of a document that an epoch comes to."""
        spans, quota = self._spans[i], self.quotas[i]
        if i not in self._weighted and quota >= len(spans):
            return len(spans.starts)
        return len(np.unique(spans.at(self._chosen(i, np.arange(quota)))[0])) if quota else 0

    def _targets(self, triples: np.ndarray) -> np.ndarray:
        """Tokens of each example that carry loss: all but the last, and but the joint of a roll."""
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
        """Numbers of the pairs that are the k-th of document i's share."""
        pairs = len(self._spans[i])
        if self._cycle:
            return k % pairs
        if i in self._weighted:
            return self._weighted[i][k]
        return (2 * k + 1) * pairs // (2 * self.quotas[i])

    def _jitter(self, indices: np.ndarray, *, room: np.ndarray, epoch: int) -> np.ndarray:
        """How far left of flush right each example is put: another place in every epoch."""
        if not self.rules.offset_jitter:
            return np.zeros_like(room)
        places = np.minimum(self.rules.offset_jitter, room) + 1
        if self.rules.jitter_mode == "uniform":
            return (indices + epoch) % places
        turn = (indices + 1 + epoch * len(self)).astype(np.uint64) * _GOLDEN
        # The high half of a 128-bit product, from 32-bit halves.
        count, low, high = places.astype(np.uint64), turn & np.uint64(0xFFFFFFFF), turn >> np.uint64(32)
        return ((high * count + (low * count >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)

    def _copy_lens(self, triples: np.ndarray) -> np.ndarray:
        doc_idx, t, s = triples.T
        lengths = np.array([len(doc) for doc in self.docs])[doc_idx]
        K = np.array([spans.K or 0 for spans in self._spans])[doc_idx]
        left = lengths if self._cyclic else lengths - t
        return np.minimum(np.minimum(K, left), self.rules.S - s)


class SpliceDocumentDataset(MultiSpliceDocumentDataset):
    """Spans of one document."""

    def __init__(self, doc: np.ndarray | Sequence[int], *, S: int, pad_id: int, **rules: Any) -> None:
        super().__init__([np.asarray(doc)], S=S, pad_id=pad_id, **rules)


def _why_nothing_fits(lengths: list[int], rules: SpanRules) -> str:
    if rules.mode == "slide":
        return f"slide needs documents of S={rules.S} tokens or more, not {lengths}: use mode splice, or longer ones"
    return (
        f"no valid span: documents of {lengths} tokens, S={rules.S}, content_length={rules.content_length}, "
        f"min_copy_len={rules.min_copy_len}; choose longer documents, or lower min_copy_len or content_length"
    )
