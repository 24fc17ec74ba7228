"""Shared parts of all tokenizers: the four chat tokens, the interface, id types, and incremental decoding.

SPECIAL_TOKENS are the names of the chat tokens. Where they occur in a text they are encoded as plain text; only
`niels_gpt.chat_template` emits their ids.
"""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

if TYPE_CHECKING:
    import torch

SPECIAL_NAMES = ("sys", "usr", "asst", "eot")
SPECIAL_TOKENS = tuple(f"<|ngpt_{name}_84a5023f67d74cf29cc4001becde983c|>" for name in SPECIAL_NAMES)
BYTE_VALUES = 256


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the type in which ids are stored: 16 bits where they suffice, else 32, little-endian."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class Tokenizer(ABC):
    """Tokenizer of any kind. Decoding needs only the text bytes of each id, so it is the same for all."""

    kind: ClassVar[str]  # as meta.json names it
    model_path: str | None = None
    text_errors = "replace"  # codec error handler: a model may write half a character

    def __init__(self, pieces: Iterable[bytes]) -> None:
        """Take the text bytes of each id; those of control tokens and unused ids are empty."""
        self._pieces = list(pieces)

    @abstractmethod
    def special_token_ids(self) -> dict[str, int]:
        """Return the ids of control tokens by name; "eot" ends a text."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text: `(n,)` of `dtype`."""

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def dtype(self) -> np.dtype:
        return token_dtype(self.vocab_size)

    def decode(self, ids: "Iterable[int] | torch.Tensor") -> str:
        """Return the text of the ids; control tokens have none and are skipped."""
        whole: Iterable[int] = ids.tolist() if hasattr(ids, "tolist") else ids
        return b"".join([self._pieces[i] for i in whole]).decode("utf-8", errors=self.text_errors)

    def token_bytes(self) -> np.ndarray:
        """Return the number of text bytes of each id: `(V,)` int64."""
        return np.array([len(piece) for piece in self._pieces], dtype=np.int64)

    def piece(self, id: int) -> bytes:
        return self._pieces[id]


class IncrementalDecoder:
    """Streaming decoder that holds back the first bytes of a UTF-8 character until a later token completes it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors=tokenizer.text_errors)

    def add(self, token: int) -> str:
        """Return the text that this token completes; empty while a character is incomplete."""
        return self._utf8.decode(self._tokenizer.piece(token))

    def rest(self) -> str:
        """Return U+FFFD if the text ended within a character, else nothing."""
        return self._utf8.decode(b"", final=True)
