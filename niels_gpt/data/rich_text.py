"""PDF, Word and HTML files of one's own, by libraries that are an extra. A document is a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from niels_gpt.data.left_out import Taken
from niels_gpt.data.readers.files import slice_folder, text_files, unpacked_suffix
from niels_gpt.data.readers.office_files import READERS, check_installed, read_office_file
from niels_gpt.data.types import Document, PretrainSample, Request
from niels_gpt.files.progress import say_above_bar

KIND = "rich_text"

SUFFIXES = tuple(READERS)


@dataclass(frozen=True)
class Settings:
    splits: ClassVar[tuple[str, ...]] = ("document",)

    glob: Annotated[str | None, 'which files of the folder, by their path in it ("2024/*.pdf"); null takes all'] = None


def documents(settings: Settings, request: Request) -> Iterator[Document]:
    for sample in iter_rich_text(request.path, glob=settings.glob, files=request.files):
        yield Document(id=sample.meta["path"], text=sample.text)


def slices(settings: Settings, request: Request, text_bytes: int) -> list[Request]:
    return slice_folder(request, SUFFIXES, glob=settings.glob, text_bytes=text_bytes)


def takes(settings: Settings) -> Taken:
    return Taken(SUFFIXES, packed=True, glob=settings.glob)


def iter_rich_text(
    path: str, *, glob: str | None = None, files: Sequence[str] | None = None
) -> Iterator[PretrainSample]:
    """Every file as a sample; meta holds its place below the folder. One without a word in it is named, and left out.
    With `files`, only these of the folder are read."""
    check_installed()
    for file, name in text_files(path, SUFFIXES, glob=glob, files=files):
        text, remarks = read_office_file(file, unpacked_suffix(name))
        for remark in remarks:
            say_above_bar(f"  {name} {remark}")
        if text.strip():
            yield PretrainSample(text=text, source=KIND, meta={"path": name})
        else:
            say_above_bar(f"  {name} holds no text (are its pages pictures?): left out")
