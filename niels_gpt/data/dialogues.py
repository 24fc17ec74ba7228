"""Source kind `dialogues`: transcripts in one text file, loaded as chats for fine-tuning; a chat is a dialogue.

A source of kind `primer` may read the same file as text. Both give a dialogue the same position and id and skip none,
so that the same split rule holds out the same dialogues in both.
"""

from collections.abc import Iterator

from niels_gpt.chat_format import parse_chat
from niels_gpt.data.readers.files import DialogueSettings as Settings
from niels_gpt.data.readers.files import file_documents, iter_dialogues
from niels_gpt.data.types import Chat, Request

KIND = "dialogues"


def chats(settings: Settings, request: Request) -> Iterator[Chat]:
    """Yield one chat per dialogue."""
    documents = file_documents(iter_dialogues(request.path, delimiter=settings.delimiter))
    for number, document in enumerate(documents, start=1):
        try:
            messages = parse_chat(document.text)
        except ValueError as error:
            raise ValueError(f"{request.path}, dialogue {number}: {error}") from error
        yield Chat(id=document.id, messages=messages)
