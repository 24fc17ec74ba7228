"""Bytes as tokens (v0): nothing to train, no text it cannot spell.

`encode` and `decode` are the bare byte functions, V=256. `ByteTokenizer`, the pipeline's, carries the chat tokens as
ids 256..259 on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from niels_gpt.tokenizer.vocabulary import BYTE_VALUES, SPECIAL_NAMES, SPECIAL_TOKENS, as_list

if TYPE_CHECKING:
    import torch


def encode(text: str) -> torch.LongTensor:
    """UTF-8 bytes of the text as ids: (n,) int64 in 0..255."""
    import torch

    ids = torch.from_numpy(np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int64))
    return ids  # type: ignore[return-value]


def decode(ids: torch.Tensor) -> str:
    """Bytes back to text; what is not UTF-8 shows as U+FFFD, since a model may emit half a character."""
    if ids.dim() != 1:
        raise ValueError(f"decode takes a 1-D tensor of ids, got shape {tuple(ids.shape)}")
    values = ids.tolist()
    if values and not (min(values) >= 0 and max(values) < BYTE_VALUES):
        raise ValueError(f"byte ids lie in 0..255, got {min(values)}..{max(values)}")
    return bytes(values).decode("utf-8", errors="replace")


class ByteTokenizer:
    """256 byte values, then the four chat tokens: V = 260. Nothing to train."""

    vocab_size = BYTE_VALUES + len(SPECIAL_TOKENS)

    def special_token_ids(self) -> dict[str, int]:
        return {name: BYTE_VALUES + i for i, name in enumerate(SPECIAL_NAMES)}

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode("utf-8"), np.uint8).astype("<u2") for text in texts]

    def decode(self, ids: Iterable[int] | torch.Tensor) -> str:
        """Chat tokens have no text of their own and are left out."""
        return bytes(i for i in as_list(ids) if i < BYTE_VALUES).decode("utf-8", errors="replace")

    def token_bytes(self) -> np.ndarray:
        """How many bytes of text each id stands for: (V,)."""
        return (np.arange(self.vocab_size) < BYTE_VALUES).astype(np.int64)

    def piece(self, id: int) -> bytes:
        """The bytes an id stands for."""
        return bytes([id]) if id < BYTE_VALUES else b""
