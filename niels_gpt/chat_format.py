r"""Plain-text chat transcripts for v0 (byte-level) models: one "{role}: {content}\n" per turn."""

import hashlib
import re
from collections.abc import Mapping, Sequence

ROLES = ("system", "user", "assistant")
PROMPT = "assistant: "
_TAGS = tuple(f"{role}: " for role in ROLES)
_TURN = re.compile(rf"^({'|'.join(ROLES)}): ", re.MULTILINE)
_LIKE_A_TURN = re.compile(rf"^(?:{'|'.join(ROLES)}) *: ?", re.MULTILINE | re.IGNORECASE)


def format_chat(messages: Sequence[Mapping[str, str]]) -> str:
    """Return the transcript as a prompt, ending with "assistant: ".

    A final assistant message with empty content is that prompt already, so its tag is not repeated.
    """
    for i, message in enumerate(messages):
        if message.get("role") not in ROLES or not isinstance(message.get("content"), str):
            raise ValueError(f"message {i} needs a role of {ROLES} and a string content, got {dict(message)!r}")
    if messages and messages[-1]["role"] == "assistant" and not messages[-1]["content"]:
        messages = messages[:-1]
    return "".join(f"{m['role']}: {m['content']}\n" for m in messages) + PROMPT


def parse_chat(text: str) -> list[dict[str, str]]:
    """Parse a hand-written transcript into messages, contents stripped; a line without a tag continues its turn.

    A misspelt tag ("User:", "assistant :") is an error: it would become part of the previous speaker's text.
    """
    misspelt = [tag[0] for tag in _LIKE_A_TURN.finditer(text) if tag[0] not in _TAGS]
    if misspelt or not _TURN.match(text):
        found = misspelt[0] if misspelt else text.split("\n", 1)[0][:40]
        raise ValueError(f"a turn begins with {', '.join(map(repr, _TAGS))}, and not with {found!r}")
    turns = _turns(text)
    if not any(role == "assistant" and content for role, content in turns):
        raise ValueError("the assistant says nothing there, so there is nothing to learn: take it out")
    return [{"role": role, "content": content} for role, content in turns]


def extract_assistant_reply(generated_text: str) -> str:
    """Return the last non-empty assistant reply, stripped; tags count only at line starts, in exact spelling."""
    replies = [content for role, content in _turns(generated_text) if role == "assistant"]
    if not replies:
        raise ValueError(f"there is no assistant tag in the text: no line of it begins with {PROMPT!r}")
    return next((reply for reply in reversed(replies) if reply), "")


def _turns(text: str) -> list[tuple[str, str]]:
    """Return (role, stripped content) of every turn; text before the first tag is ignored."""
    _, *parts = _TURN.split(text)
    return [(role, content.strip()) for role, content in zip(parts[::2], parts[1::2], strict=True)]


def chat_key(text: str) -> str:
    """Return the key of a chat: a hash of the joined contents of its messages.

    Row numbers would not do: chats without an answer are not tokenized, so numbers shift.
    """
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
