"""Source kind `text`: the user's own files, one file or a folder.

A document is a text file (.txt, .md) or a row of a table (.jsonl, .csv, .parquet); .gz and .zst are decompressed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from niels_gpt.data.readers.files import decode_text, file_documents, read_bytes, text_files, unpacked_suffix
from niels_gpt.data.readers.tables import TextColumn, iter_csv_texts, iter_json_lines, iter_parquet_rows
from niels_gpt.data.secrets import outside_secrets
from niels_gpt.data.types import Document, PretrainSample, Request

KIND = "text"

SUFFIXES = (".txt", ".md", ".jsonl", ".csv", ".parquet")
_FRONT_MATTER = re.compile(r"\A---\r?\n.*?^---(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Settings:
    glob: Annotated[str | None, 'which files of the folder, by their path in it ("2024/*.md"); null takes all'] = None
    front_matter: Annotated[bool, "whether YAML between two lines of --- at a file's head is part of the text"] = True
    held_out_tail: Annotated[float, Ge(0), Lt(1), "share at the end of every document that is held out"] = 0.0

    @property
    def splits(self) -> tuple[str, ...]:
        return ("given",) if self.held_out_tail else ("document",)


def documents(settings: Settings, request: Request) -> Iterator[Document]:
    """Yield the documents; with `held_out_tail`, each as two: its head for training, its tail for validation."""
    samples = iter_text(request.path, glob=settings.glob, front_matter=settings.front_matter, files=request.files)
    for document in file_documents(samples):
        if not settings.held_out_tail:
            yield document
            continue
        cut = outside_secrets(document.text, round(len(document.text) * (1 - settings.held_out_tail)))
        yield Document(id=document.id, text=document.text[:cut], split="train")
        yield Document(id=f"{document.id}, end", text=document.text[cut:], split="val")


def iter_text(
    path: str, *, glob: str | None = None, front_matter: bool = True, files: Sequence[str] | None = None
) -> Iterator[PretrainSample]:
    """Yield every document as a sample; meta has its path (with the row, "file:row"), its file and the encoding.

    `glob` selects files by their path relative to the folder ("2024/*.md"). Without `front_matter`, YAML between two
    lines of --- at the start of a text file is removed. With `files`, only these files of the folder are read.
    """
    for file, name in text_files(path, SUFFIXES, glob=glob, files=files):
        kind = unpacked_suffix(file)
        if kind in (".txt", ".md"):
            text, encoding = decode_text(read_bytes(file))
            text = text if front_matter else _FRONT_MATTER.sub("", text, count=1)
            yield PretrainSample(text, source=KIND, meta={"path": name, "file": name, "encoding": encoding})
            continue
        for number, text, column, encoding in iter_csv_texts(file) if kind == ".csv" else _row_texts(file, kind):
            meta = {"path": f"{name}:{number}", "file": name, "encoding": encoding}
            yield PretrainSample(text, source=KIND, meta=meta if column == "text" else {**meta, "column": column})


def _row_texts(file: str, kind: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield (row number, text, column name, encoding) of a table; raise a ValueError for a row without the column."""
    column = TextColumn()
    for number, row, encoding in iter_json_lines(file) if kind == ".jsonl" else iter_parquet_rows(file):
        text, name = column.read(row, place=f"{file}, row {number}")
        yield number, text, name, encoding
