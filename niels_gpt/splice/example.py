"""Training examples from (document, t, s), and their collation into batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


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
