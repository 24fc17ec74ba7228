"""Types of the loaders: requests, samples (types of the original specification), and rows of the pipeline."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from annotated_types import Ge, Lt

Seed = Annotated[int, Ge(0), Lt(2**63)]
Count = Annotated[int, Ge(1), Lt(2**63)]
Role = Literal["system", "user", "assistant"]
PATIENCE_S = 120.0  # seconds without data until a stream from the hub is abandoned


@dataclass(frozen=True)
class PretrainSample:
    """Text of one document, page or line, with the name of its source kind and its metadata."""

    text: str
    source: str
    meta: dict[str, Any]


@dataclass(frozen=True)
class ChatMessage:
    """Turn of a chat."""

    role: Role
    content: str


@dataclass(frozen=True)
class ChatSample:
    """Chat with the name of its source kind and its metadata."""

    messages: list[ChatMessage]
    source: str
    meta: dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Parameters of a source kind, here none; `splits` are the rules by which its rows can be split."""

    splits: ClassVar[tuple[str, ...]] = ("document",)


@dataclass(frozen=True)
class Request:
    """Request to the loader of a source kind.

    `path` is a file, a folder or a hub dataset id, read at `revision`. A loader may stop once it has text for
    `max_tokens` tokens (None: read everything). Loading fails if the hub sends nothing for `patience_s` seconds. With
    `files`, only these files of the source are read.
    """

    path: str
    revision: str | None = None
    max_tokens: int | None = None
    patience_s: float = PATIENCE_S
    files: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Document:
    """Row of text; `id` is unique in its source, `split` is the source's own ("train" or "val"), if it has one."""

    id: str
    text: str
    split: str | None = None

    def bytes(self) -> int:
        return len(self.text.encode("utf-8"))


@dataclass(frozen=True)
class Chat:
    """Row of messages; chats of the same `group` (threads of one message tree) are held out together or not at all."""

    id: str
    messages: list[dict[str, str]]
    split: str | None = None
    group: str | None = None

    @classmethod
    def of(cls, sample: ChatSample, *, id: str, group: str | None = None) -> "Chat":
        return cls(id=id, messages=[vars(message) for message in sample.messages], group=group)

    def bytes(self) -> int:
        """Return the total size of the messages' contents in UTF-8 bytes."""
        return sum(len(message["content"].encode("utf-8")) for message in self.messages)


R = TypeVar("R", Document, Chat)


def up_to(text_bytes: float, rows: Iterable[R]) -> Iterator[R]:
    """Yield rows until they add up to `text_bytes` bytes; the last row is never truncated."""
    size = 0
    for row in rows:
        yield row
        size += row.bytes()
        if size >= text_bytes:
            return


I = TypeVar("I")  # noqa: E741


def grouped(
    items: Iterable[I], size: Callable[[I], int], *, most: int, count: float = math.inf
) -> Iterator[tuple[list[I], int]]:
    """Yield (items, their total size) of consecutive groups, each of `count` items or of a size that reaches `most`."""
    group, total = list[I](), 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= most or len(group) >= count:
            yield group, total
            group, total = [], 0
    if group:
        yield group, total
