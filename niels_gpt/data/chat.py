"""Source kind `chat`: the user's own chats in .jsonl files (also .gz, .zst).

Each line is {"messages": [{"role": ..., "content": ...}, ...]}.
"""

from collections.abc import Iterator
from typing import Any

from niels_gpt.chat_format import ROLES
from niels_gpt.data.readers.files import encoding_remark, text_files
from niels_gpt.data.readers.tables import iter_json_lines
from niels_gpt.data.types import Chat, Request, Settings
from niels_gpt.files.messages import say_above_bar

KIND = "chat"
SUFFIXES = (".jsonl",)


def chats(settings: Settings, request: Request) -> Iterator[Chat]:
    """Yield one chat per line."""
    return iter_own_chats(request.path)


def iter_own_chats(path: str) -> Iterator[Chat]:
    """Yield every chat, with the id "file:line". Encodings other than UTF-8 are reported."""
    for file, name in text_files(path, SUFFIXES, glob=None):
        said: set[str] = set()
        for number, row, encoding in iter_json_lines(file):
            if encoding not in said and (remark := encoding_remark(encoding)):
                said.add(encoding)
                say_above_bar(f"  {name} {remark}")
            yield Chat(f"{name}:{number}", _messages(row, f"{file}, line {number}"))


def _messages(row: dict[str, Any], place: str) -> list[dict[str, str]]:
    messages = row.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError(f'{place}, has no list "messages": each line must hold one')
    for message in messages:
        if message.get("role") not in ROLES or not isinstance(message.get("content"), str):
            raise ValueError(f"{place}: a message needs a role of {', '.join(ROLES)} and a content that is text")
    if not any(message["role"] == "assistant" and message["content"] for message in messages):
        raise ValueError(f"{place}: the assistant says nothing there, so there is nothing to learn: take it out")
    return [{key: message[key] for key in ("role", "content")} for message in messages]
