"""What all tokenizers share: the four chat tokens, and what the pipeline asks of a tokenizer.

The strings in SPECIAL_TOKENS name the chat tokens; found in a *text* they are plain text, and only
`niels_gpt.chat_template` emits their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:  # torch takes 1.4 s to import; stages that only encode text do without it
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
