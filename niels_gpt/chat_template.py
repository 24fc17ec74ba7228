"""Chat template and loss mask: each message is its role id, its content's ids and the end-of-turn id.

SFT examples, generation prompts and reply extraction all use this one renderer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Literal, TypedDict

import numpy as np

from niels_gpt.tokenizer.vocabulary import Tokenizer


class Message(TypedDict):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


_ROLE_TOKENS = {"system": "sys", "user": "usr", "assistant": "asst"}


def format_chat(tok: Tokenizer, messages: Sequence[Message] | Sequence[Mapping[str, str]]) -> list[int]:
    """Return the ids of all messages, with the role and end-of-turn tokens."""
    special = tok.special_token_ids()
    ids: list[int] = []
    for message in messages:
        if message["role"] not in _ROLE_TOKENS:
            raise ValueError(f"role must be one of {sorted(_ROLE_TOKENS)}, got {message['role']!r}")
        ids += [special[_ROLE_TOKENS[message["role"]]], *tok.encode(message["content"]), special["eot"]]
    return ids


def format_prompt(tok: Tokenizer, messages: Sequence[Message] | Sequence[Mapping[str, str]]) -> list[int]:
    """Return the chat's ids followed by the assistant's role id, ready for generation."""
    return [*format_chat(tok, messages), tok.special_token_ids()["asst"]]


def extract_assistant_reply(tok: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Return the ids after the last assistant id, up to the next special id or the end.

    The list is empty if there is no assistant turn or if that turn has no content.
    """
    special = tok.special_token_ids()
    last = max((i for i, token in enumerate(ids) if token == special["asst"]), default=len(ids))
    return list(takewhile(lambda token: token not in special.values(), ids[last + 1 :]))


def supervised(ids: np.ndarray, *, asst_id: int, eot_id: int) -> np.ndarray:
    """Return the loss mask of `(B, n)` ids: True after an assistant id, up to and including the next end of turn.

    Each assistant id gets an odd number that grows with its position, each end of turn an even one. The lowest bit of
    the running maximum before a position then says which of the two came last, without a Python loop over tokens.
    """
    places = np.arange(1, ids.shape[1] + 1, dtype=np.int32) * 2
    marks = np.where(ids == asst_id, places + 1, np.where(ids == eot_id, places, 0))
    inside = np.zeros(ids.shape, dtype=bool)
    inside[:, 1:] = np.maximum.accumulate(marks, axis=1)[:, :-1] & 1
    return inside
