r"""The text transcript of a chat, which a v0 model learns to continue: "{role}: {content}\n" a turn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

ROLES = ("system", "user", "assistant")
PROMPT = "assistant: "
_TURN = re.compile(rf"^(?:{'|'.join(ROLES)}): ", re.MULTILINE)


def format_chat(messages: Sequence[Mapping[str, str]]) -> str:
    """The transcript, ending with "assistant: " for the model to go on from.

    A last assistant turn without content is that prompt itself: its tag is not written twice.
    """
    for i, message in enumerate(messages):
        if message.get("role") not in ROLES or not isinstance(message.get("content"), str):
            raise ValueError(f"message {i} needs a role of {ROLES} and a string content, got {dict(message)!r}")
    if messages and messages[-1]["role"] == "assistant" and not messages[-1]["content"]:
        messages = messages[:-1]
    return "".join(f"{m['role']}: {m['content']}\n" for m in messages) + PROMPT


def extract_assistant_reply(generated_text: str) -> str:
    """The last non-empty assistant reply, stripped. A tag counts only at the start of a line, exactly spelt."""
    tags = list(_TURN.finditer(generated_text))
    ends = [*(tag.start() for tag in tags), len(generated_text)][1:]
    replies = [generated_text[tag.end() : end].strip() for tag, end in zip(tags, ends, strict=True) if tag[0] == PROMPT]
    if not replies:
        raise ValueError(f"there is no assistant tag in the text: no line of it begins with {PROMPT!r}")
    return next((reply for reply in reversed(replies) if reply), "")
