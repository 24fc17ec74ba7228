"""What a loader is asked for, and what it yields: samples, as the seeds have them, and rows of the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True)
class PretrainSample:
    text: str
    source: str
    meta: dict[str, Any]


@dataclass(frozen=True)
class ChatMessage:
    role: Role
    content: str


@dataclass(frozen=True)
class ChatSample:
    messages: list[ChatMessage]
    source: str
    meta: dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What is asked of a kind of source: `path` is a file, a folder or the id of a hub dataset, at that `revision`;
    text for `max_tokens` is enough (None: all of it); a silent hub is given up after `patience_s`. With `files`, only
    these of its files are meant."""

    path: str
    revision: str | None
    max_tokens: int | None
    patience_s: float
    files: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Document:
    """A row of text. `id` is unique in its source; `split` is the one that the source itself gives it."""

    id: str
    text: str
    split: str | None = None

    def bytes(self) -> int:
        return len(self.text.encode("utf-8"))


@dataclass(frozen=True)
class Chat:
    """A row of messages. Chats of one `group` (the tree of a thread) are held out together or not at all."""

    id: str
    messages: list[dict[str, str]]
    split: str | None = None
    group: str | None = None

    @classmethod
    def of(cls, sample: ChatSample, *, id: str, group: str | None = None) -> Chat:
        return cls(id=id, messages=[vars(message) for message in sample.messages], group=group)

    def bytes(self) -> int:
        return sum(len(message["content"].encode("utf-8")) for message in self.messages)
