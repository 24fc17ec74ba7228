"""A folder of markdown notes. A document is a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from niels_gpt.data.corpus.split import split_rows
from niels_gpt.data.kinds import Taken
from niels_gpt.data.readers.files import decode_text, file_documents, list_files, read_bytes, slice_files
from niels_gpt.data.types import Document, PretrainSample, Request

KIND = "roam"


@dataclass(frozen=True)
class Settings:
    splits: ClassVar[tuple[str, ...]] = ("document",)


def documents(settings: Settings, request: Request) -> Iterator[Document]:
    return file_documents(iter_roam(request.path, files=request.files))


def slices(settings: Settings, request: Request, text_bytes: int) -> list[Request]:
    names = [_name(path, request.path) for path in list_roam_paths(request.path)]
    return [replace(request, files=group) for group in slice_files(request.path, names, text_bytes)]


def takes(settings: Settings) -> Taken:
    return Taken((".md",))


def list_roam_paths(root_dir: str) -> list[str]:
    """Absolute paths of all *.md files below `root_dir`, sorted; hidden ones are left out."""
    return list_files(root_dir, {".md"})


def load_texts(paths: Sequence[str]) -> list[str]:
    """The files' texts, in the order given. Line ends are kept; bytes that are not UTF-8 become U+FFFD."""
    return [read_bytes(path).decode("utf-8", errors="replace") for path in paths]


def split_roam_paths(paths: Sequence[str], *, val_frac: float = 0.1, seed: int) -> tuple[list[str], list[str]]:
    """(train, val) by file."""
    train, val = split_rows(len(paths), val_frac=val_frac, seed=seed)
    return [paths[i] for i in train], [paths[i] for i in val]


def iter_roam(root_dir: str, *, files: Sequence[str] | None = None) -> Iterator[PretrainSample]:
    """Every note as a sample, in whatever encoding; meta holds its path below the folder, and the encoding. With
    `files`, only these of the folder."""
    root = os.path.abspath(root_dir)
    for path in list_roam_paths(root_dir) if files is None else [os.path.join(root, name) for name in files]:
        text, encoding = decode_text(read_bytes(path))
        relative = _name(path, root_dir)
        yield PretrainSample(text=text, source="roam", meta={"path": relative, "file": relative, "encoding": encoding})


def _name(path: str, root_dir: str) -> str:
    return Path(path).relative_to(os.path.abspath(root_dir)).as_posix()
