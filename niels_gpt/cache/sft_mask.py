"""The loss mask of a chat: trained are the assistant's tokens, and the end of its turn."""

from __future__ import annotations

import numpy as np


def supervised(ids: np.ndarray, *, asst_id: int, eot_id: int) -> np.ndarray:
    """(B, n) ids -> (B, n) bool: True for tokens after an assistant id, up to and including the next end of turn.

    Each assistant id is marked with an odd number that grows with its place, each end of turn with an even one; the
    running maximum before a place then tells by its last bit which of the two came last.
    """
    places = np.arange(1, ids.shape[1] + 1, dtype=np.int32) * 2
    marks = np.where(ids == asst_id, places + 1, np.where(ids == eot_id, places, 0))
    inside = np.zeros(ids.shape, dtype=bool)
    inside[:, 1:] = np.maximum.accumulate(marks, axis=1)[:, :-1] & 1
    return inside
