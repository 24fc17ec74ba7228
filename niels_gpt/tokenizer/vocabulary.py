"""What all tokenizers share: the four chat tokens, the interface, and incremental decoding.

The strings in SPECIAL_TOKENS name the chat tokens; found in a *text* they are plain text, and only
`niels_gpt.chat_template` emits their ids.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch


SPECIAL_NAMES = ("sys", "usr", "asst", "eot")
SPECIAL_TOKENS = tuple(f"<|ngpt_{name}_84a5023f67d74cf29cc4001becde983c|>" for name in SPECIAL_NAMES)
BYTE_VALUES = 256


class Tokenizer(Protocol):
    """What the pipeline asks of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...
    def special_token_ids(self) -> dict[str, int]: ...
    def encode(self, text: str) -> list[int]: ...
    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]: ...
    def decode(self, ids: Iterable[int] | torch.Tensor) -> str: ...
    def token_bytes(self) -> np.ndarray: ...
    def piece(self, id: int) -> bytes: ...


def as_list(ids: Iterable[int] | torch.Tensor) -> Iterable[int]:
    return ids.tolist() if hasattr(ids, "tolist") else ids


class IncrementalDecoder:
    """Of UTF-8: the first bytes of a character wait for the token that completes it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        """The text that this token completes; none while a character is not whole."""
        return self._utf8.decode(self._tokenizer.piece(token))

    def rest(self) -> str:
        """At the end: a character that was left unfinished, as U+FFFD."""
        return self._utf8.decode(b"", final=True)
