"""What of a conversation fits the context: the oldest turns are forgotten first, whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Messages = Sequence[Mapping[str, str]]


class Remembered(NamedTuple):
    messages: list[Mapping[str, str]]
    forgotten: int  # messages, the first of those that are no system's


def remember(messages: Messages, *, tokens: Callable[[Messages], int], room: int) -> Remembered:
    """The messages from the first turn on with which the prompt has at most `room` tokens.

    What the system says stays, and so does the last turn, whatever its length. A turn begins with what the user says:
    an answer is not kept without its question.
    """
    system = [message for message in messages if message["role"] == "system"]
    said = [message for message in messages if message["role"] != "system"]
    begins = [0, *(i for i, message in enumerate(said) if i and message["role"] == "user")]

    def fits(turns: int) -> bool:
        return tokens([*system, *said[begins[-turns] :]]) <= room

    # Twice as many each time, then by halving: a chat far longer than the context is never made tokens of as a whole.
    kept, most = 1, 1
    while most < len(begins) and fits(most := min(2 * most, len(begins))):
        kept = most
    while most - kept > 1:
        middle = (kept + most) // 2
        kept, most = (middle, most) if fits(middle) else (kept, middle)
    first = begins[-kept]
    return Remembered([*system, *said[first:]] if first else list(messages), first)
