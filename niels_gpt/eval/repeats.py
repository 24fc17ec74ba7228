"""Passages that stand in other documents, too: templates, boilerplate, quotations. To say those proves nothing of one
document; whoever has seen the others can."""

from __future__ import annotations

import numpy as np

from niels_gpt.eval.passages import Documents, Passages

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit of an id is lost


def repeated(passages: Passages, documents: Documents, *, own: bool) -> np.ndarray:
    """Which passages ask for text that is in others of these documents, of which they are themselves if `own`: half of
    its n-grams at least, with n a quarter of what a whole passage asks for."""
    if not len(passages):
        return np.empty(0, dtype=bool)
    n = max(1, int(passages.asked.max()) // 4)
    grams = grams_of(passages.tokens, n)
    starts = np.arange(grams.shape[1])
    asked = (starts >= passages.prompts[:, None]) & (starts + n <= passages.lengths[:, None])
    looked_for, which = np.unique(grams[asked], return_inverse=True)
    met = np.zeros(len(looked_for), dtype=bool)
    elsewhere = np.zeros(len(looked_for), dtype=bool)
    for row in range(len(documents.lengths)):
        found = grams_of(documents.document(row), n)
        at = np.minimum(np.searchsorted(looked_for, found), len(looked_for) - 1)
        at = at[looked_for[at] == found]
        elsewhere[at] |= met[at] if own else True
        met[at] = True
    counts, rows = asked.sum(axis=1), np.nonzero(asked)[0]
    shares = np.bincount(rows, weights=elsewhere[which], minlength=len(passages)) / np.maximum(1, counts)
    return shares >= 0.5


def grams_of(tokens: np.ndarray, n: int) -> np.ndarray:
    """Return a hash of every n consecutive tokens, (..., L) -> (..., L-n+1)."""
    ids, length = tokens.astype(np.uint64) + np.uint64(1), max(0, tokens.shape[-1] - n + 1)
    hashes = np.zeros((*tokens.shape[:-1], length), dtype=np.uint64)
    for i in range(n if length else 0):
        hashes = hashes * _FACTOR + ids[..., i : i + length]
    return hashes
