"""Consistency of token files: offsets are compared with the tokens that they point into."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from niels_gpt.files.damage import Damaged


def read_offsets(path: str | Path, *, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """(starts, lengths), once they are known to describe a file of so many tokens."""
    try:
        starts = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:  # on foreign bytes numpy's reader fails in many ways: EOFError, SyntaxError, ...
        raise Damaged(path, f"is no file of offsets ({error}): build it again") from error
    fits = isinstance(starts, np.ndarray) and starts.dtype == np.int64 and starts.ndim == 1 and len(starts) > 0
    # Compared, not subtracted: a difference of two wild numbers can wrap around to a plausible one.
    if not fits or starts[0] != 0 or (starts[1:] <= starts[:-1]).any() or starts[-1] >= tokens:
        raise Damaged(path, f"does not hold the ascending offsets of {tokens:,} tokens: build it again")
    return starts, np.diff(np.append(starts, tokens))
