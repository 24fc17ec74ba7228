"""Dialogues in the transcript form, in one text file, to be answered as chats. A chat is a dialogue.

The file may be one that a source of kind `primer` reads as text. Chats have the order and the names of the documents
there, and none is left out, so that by one rule the same dialogues are held out of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import MinLen

from niels_gpt.chat_format import parse_chat
from niels_gpt.data.readers.files import file_documents, iter_dialogues
from niels_gpt.data.types import Chat, Request

KIND = "dialogues"


@dataclass(frozen=True)
class Settings:
    splits: ClassVar[tuple[str, ...]] = ("document",)

    delimiter: Annotated[str, MinLen(1), "what stands between two dialogues"]


def chats(settings: Settings, request: Request) -> Iterator[Chat]:
    documents = file_documents(iter_dialogues(request.path, delimiter=settings.delimiter))
    for number, document in enumerate(documents, start=1):
        try:
            messages = parse_chat(document.text)
        except ValueError as error:
            raise ValueError(f"{request.path}, dialogue {number}: {error}") from error
        yield Chat(id=document.id, messages=messages)
