"""Datasets of spliced documents: examples, epochs, and their distribution over ranks.

An example is a row (document, t, s, tokens of the span), computed from its number in an epoch: an epoch is not a list.
For the letters see `spans.py`.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from niels_gpt.splice.spans import SpanRules, Spans, quantile_indices, quotas, temperature


class Example(dict[str, Any]):
    """Tensors by key or attribute: tokens, targets, loss_mask, segment_ids, position_ids, doc_idx, t, s, copy_len."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


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
    copy_len = min(content_length or S, L if cyclic else L - t, S - s)
    batch = collate(docs, np.array([[doc_idx, t, s, copy_len]]), S=S, pad_id=pad_id, layout="frame", cyclic=cyclic)
    batch["segment_ids"][0, s + copy_len :] = trailing_segment
    return Example({name: value[0] for name, value in batch.items()})


def collate(
    docs: Sequence[np.ndarray] | Sequence[Sequence[int]],
    examples: np.ndarray,
    *,
    S: int,
    pad_id: int,
    layout: str = "compact",
    cyclic: bool = False,
    width: int | None = None,
) -> Example:
    """Collate examples (B, 4) into a batch: tokens, targets shifted by one, loss mask, ids.

    layout="frame": (B, S), each span at its offset s; the padding to its left is in segment 0, the span in segment 1.
    layout="compact": (B, `width` or longest span), spans left-aligned, with the position ids they have in the frame.
    Plain causal attention then gives the same numbers, since a span never attends to what is before it.
    """
    import torch  # here, so that code that only needs span rules does not import it

    doc_idx, t, s, copy_len = examples.T
    at, width = (s, S) if layout == "frame" else (np.zeros_like(s), width or int(copy_len.max()))
    # One extra column: targets are the tokens from the second on.
    tokens = np.full((len(examples), width + 1), pad_id, dtype=np.int64)
    for row, place, (doc, start, _, n) in zip(tokens, at.tolist(), examples.tolist(), strict=True):
        content = docs[doc][start : start + n]
        row[place : place + len(content)] = content
        if len(content) < n:  # cyclic_roll: wrap around to the document's beginning
            row[place + len(content) : place + n] = docs[doc][: n - len(content)]
    columns = np.arange(width)
    loss_mask = (columns >= at[:, None]) & (columns < (at + copy_len - 1)[:, None])
    if cyclic:  # no loss for predicting the document's first token after its last
        joints = at + np.array([len(docs[doc]) for doc in doc_idx.tolist()]) - 1 - t
        loss_mask &= columns != joints[:, None]
    made = {
        "tokens": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "loss_mask": loss_mask,
        "segment_ids": (columns >= at[:, None]).astype(np.int32),
        "position_ids": np.minimum((s - at)[:, None] + columns, S - 1),
        **dict(zip(("doc_idx", "t", "s", "copy_len"), examples.T.copy(), strict=True)),
    }
    return Example({name: torch.from_numpy(values) for name, values in made.items()})


@lru_cache(maxsize=2)  # a batch may span two epochs
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
        self._lengths = np.array([len(doc) for doc in docs])
        self._spans = [Spans(length, self.rules) for length in self._lengths.tolist()]
        pairs = [len(spans) for spans in self._spans]
        self.valid_docs = [i for i, count in enumerate(pairs) if count]
        if not self.valid_docs:
            lengths, content, least = self._lengths.tolist(), self.rules.content_length, self.rules.min_copy_len
            if self.rules.mode == "slide":
                wanted = f"slide needs documents of S={S} tokens or more, not {lengths}"
                raise ValueError(f"{wanted}: use mode splice, or longer ones")
            raise ValueError(
                f"no valid span: documents of {lengths} tokens, S={S}, content_length={content}, min_copy_len={least}; "
                "choose longer documents, or lower min_copy_len or content_length"
            )
        # Every pair once, or each document's pairs repeated up to the largest count; all else is rounded to quotas.
        shares = [max(pairs) if balance_mode == "by_document" else pairs[i] for i in self.valid_docs]
        self._repeat = epoch_length is None and not self.rules.alpha and balance_mode != "by_temperature"
        if not self._repeat:
            shares = quotas(
                self._lengths[self.valid_docs].tolist(),
                balance_mode=balance_mode,
                balance_tau=balance_tau,
                epoch_length=epoch_length or sum(shares),
            )
        by_document = dict(zip(self.valid_docs, shares, strict=True))
        self.quotas = [by_document.get(i, 0) for i in range(len(docs))]
        self._ends = np.cumsum(self.quotas)
        self._weighted = {
            i: quantile_indices(len(spans), self.quotas[i], spans.weights)
            for i, spans in enumerate(self._spans)
            if spans.weights is not None and self.quotas[i]
        }

    def __len__(self) -> int:
        """Return the number of examples in an epoch."""
        return int(self._ends[-1])

    def examples(self, indices: Sequence[int] | np.ndarray, *, epoch: int = 0) -> np.ndarray:
        """Return the examples with these numbers, (B, 4) int64: document, t, s, tokens of the span."""
        numbers = np.asarray(indices, dtype=np.int64)
        doc_idx = np.searchsorted(self._ends, numbers, side="right")
        found = np.empty((len(numbers), 4), dtype=np.int64)
        found[:, 0] = doc_idx
        for i in np.unique(doc_idx).tolist():
            own = doc_idx == i
            found[own, 1:] = self._at(i, numbers[own] - self._ends[i] + self.quotas[i])
        found[:, 2] -= self._jitter(numbers, room=found[:, 2], epoch=epoch)
        return found

    def _at(self, i: int, k: np.ndarray) -> np.ndarray:
        """Return (t, s, tokens) of the k-th examples of document i, (n, 3), before jitter."""
        pairs = len(self._spans[i])
        if self._repeat:
            numbers = k % pairs
        elif i in self._weighted:
            numbers = self._weighted[i][k]
        else:
            numbers = (2 * k + 1) * pairs // (2 * self.quotas[i])
        return np.stack(self._spans[i].at(numbers), axis=1)

    def triples(self, epoch: int = 0) -> np.ndarray:
        """Return (doc_idx, t, s) of all examples of an epoch, (N, 3) int64, unshuffled."""
        return self.examples(np.arange(len(self)), epoch=epoch)[:, :3]

    def __getitem__(self, index: int) -> Example:
        """Return one example of epoch 0 in the frame layout."""
        batch = self.batch([range(len(self))[index]], layout="frame")
        return Example({name: value[0] for name, value in batch.items()})

    def batch(self, indices: Sequence[int] | np.ndarray, *, layout: str = "compact", epoch: int = 0) -> Example:
        """Return the examples with these numbers as a batch; for `layout` see `collate`."""
        return self.collate(self.examples(indices, epoch=epoch), layout=layout)

    def collate(self, examples: np.ndarray, **how: Any) -> Example:
        """Collate examples; `how` are further arguments of the function `collate`."""
        return collate(self.docs, examples, S=self.rules.S, pad_id=self.pad_id, cyclic=self.rules.cyclic, **how)

    def targets(self, examples: np.ndarray) -> np.ndarray:
        """Return the number of tokens with loss of each example: all but the last, and but the seam of a roll."""
        doc_idx, t, _, copy_len = examples.T
        return copy_len - 1 - (t + copy_len > self._lengths[doc_idx])

    def summary(self) -> dict[str, Any]:
        """Return the numbers that describe the dataset: documents, spans, quotas, coverage and jitter."""
        # In a very long epoch, targets are counted in every 101st example only.
        counted = self.examples(np.arange(0, len(self), 101 if len(self) > 1_000_000 else 1))
        # A span can be moved left from flush right by the room that it leaves in the frame.
        room = [self.rules.S - int(self._spans[i].spans.min()) for i in self.valid_docs]
        jitter = [min(self.rules.offset_jitter, places) for places in room]
        return {
            "num_docs": len(self.docs),
            "valid_docs": list(self.valid_docs),
            "doc_lengths": self._lengths.tolist(),
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
            "supervised_tokens_per_frame": float(self.targets(counted).mean()),
            "effective_jitter": max(jitter),
            "jitter_is_inert": bool(self.rules.offset_jitter) and not any(jitter),
        }

    def _visited(self, i: int) -> int:
        """Return how many starts of document i an epoch visits."""
        spans, quota = self._spans[i], self.quotas[i]
        if i not in self._weighted and quota >= len(spans):
            return len(spans.starts)
        return len(np.unique(self._at(i, np.arange(quota))[:, 0])) if quota else 0

    @property
    def longest_span(self) -> int:
        return max(spans.K or 0 for spans in self._spans)

    def _jitter(self, indices: np.ndarray, *, room: np.ndarray, epoch: int) -> np.ndarray:
        """Return by how many positions each example is moved left from flush right; it changes with the epoch."""
        if not self.rules.offset_jitter:
            return np.zeros_like(room)
        places = np.minimum(self.rules.offset_jitter, room) + 1
        if self.rules.jitter_mode == "uniform":
            return (indices + epoch) % places
        # 2**64 over the golden ratio: turn / 2**64 is a low-discrepancy sequence in [0, 1). Times `places`, it is the
        # high half of a 128-bit product, computed from 32-bit halves.
        turn = (indices + 1 + epoch * len(self)).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        count, low, high = places.astype(np.uint64), turn & np.uint64(0xFFFFFFFF), turn >> np.uint64(32)
        return ((high * count + (low * count >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


class SpliceDocumentDataset(MultiSpliceDocumentDataset):
    """Dataset of spans of one document."""

    def __init__(self, doc: np.ndarray | Sequence[int], *, S: int, pad_id: int, **rules: Any) -> None:
        super().__init__([np.asarray(doc)], S=S, pad_id=pad_id, **rules)
