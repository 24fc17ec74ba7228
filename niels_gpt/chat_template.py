"""Chats as ids: for each message its role's id, the content's ids, and the end-of-turn id; and their loss mask.

The one renderer: what SFT trains on, what generation prompts with, and what a reply is cut out of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Literal, TypedDict

import numpy as np

from niels_gpt.tokenizer.vocabulary import Tokenizer


class Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


_ROLE_TOKENS = {"system": "sys", "user": "usr", "assistant": "asst"}


def format_chat(tok: Tokenizer, messages: Sequence[Message] | Sequence[Mapping[str, str]]) -> list[int]:
    """The whole chat."""
    special = tok.special_token_ids()
    ids: list[int] = []
    for message in messages:
        if message["role"] not in _ROLE_TOKENS:
            raise ValueError(f"role must be one of {sorted(_ROLE_TOKENS)}, got {message['role']!r}")
        ids += [special[_ROLE_TOKENS[message["role"]]], *tok.encode(message["content"]), special["eot"]]
    return ids


def format_prompt(tok: Tokenizer, messages: Sequence[Message] | Sequence[Mapping[str, str]]) -> list[int]:
    """The chat, and the assistant's id for the model to answer after."""
    return [*format_chat(tok, messages), tok.special_token_ids()["asst"]]


def extract_assistant_reply(tok: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Return the ids after the last assistant id, up to the next special id or the end.

    Without an assistant turn there is no reply: the list is empty, as it is for a turn without content.
    """
    special = tok.special_token_ids()
    last = max((i for i, token in enumerate(ids) if token == special["asst"]), default=len(ids))
    return list(takewhile(lambda token: token not in special.values(), ids[last + 1 :]))


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
