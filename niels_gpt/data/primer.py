"""Source kind `primer`: transcripts of dialogues in one text file, loaded as text; a document is a dialogue."""

from collections.abc import Iterator

from niels_gpt.data.corpus.split import split_rows
from niels_gpt.data.readers.files import DIALOGUE_DELIM, cut_dialogues, file_documents, iter_dialogues, read_bytes
from niels_gpt.data.readers.files import DialogueSettings as Settings
from niels_gpt.data.types import Document, Request

KIND = "primer"


def documents(settings: Settings, request: Request) -> Iterator[Document]:
    """Yield one document per dialogue."""
    return file_documents(iter_dialogues(request.path, delimiter=settings.delimiter))


def load_primer_text(path: str) -> str:
    """Return the file's text exactly as stored; raise a ValueError if it is not UTF-8."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from error


def split_primer_dialogues(
    text: str, *, val_frac: float = 0.1, seed: int, delimiter: str = DIALOGUE_DELIM
) -> tuple[str, str]:
    """Split by dialogue and return the (train, val) texts, joined by the delimiter."""
    dialogues = cut_dialogues(text, delimiter)
    train, val = split_rows(len(dialogues), val_frac=val_frac, seed=seed)
    return delimiter.join(dialogues[i] for i in train), delimiter.join(dialogues[i] for i in val)
