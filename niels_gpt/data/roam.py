"""Source kind `roam`: a folder of markdown notes; a document is a file."""

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
    """Parameters of kind `roam`: none."""

    splits: ClassVar[tuple[str, ...]] = ("document",)


def documents(settings: Settings, request: Request) -> Iterator[Document]:
    """Yield one document per note."""
    return file_documents(iter_roam(request.path, files=request.files))


def slices(settings: Settings, request: Request, text_bytes: int) -> list[Request]:
    """Return requests for groups of notes of about `text_bytes` bytes."""
    names = [_name(path, request.path) for path in list_roam_paths(request.path)]
    return [replace(request, files=group) for group in slice_files(request.path, names, text_bytes)]


def takes(settings: Settings) -> Taken:
    """Return the files this kind reads."""
    return Taken((".md",))


def list_roam_paths(root_dir: str) -> list[str]:
    """Return the sorted absolute paths of all *.md files below `root_dir`, except hidden ones."""
    return list_files(root_dir, {".md"})


def load_texts(paths: Sequence[str]) -> list[str]:
    """Return the files' texts in the given order, with their line ends; bytes that are not UTF-8 become U+FFFD."""
    return [read_bytes(path).decode("utf-8", errors="replace") for path in paths]


def split_roam_paths(paths: Sequence[str], *, val_frac: float = 0.1, seed: int) -> tuple[list[str], list[str]]:
    """Return (train, val) paths, split by file."""
    train, val = split_rows(len(paths), val_frac=val_frac, seed=seed)
    return [paths[i] for i in train], [paths[i] for i in val]


def iter_roam(root_dir: str, *, files: Sequence[str] | None = None) -> Iterator[PretrainSample]:
    """Yield every note, or those in `files`, as a sample; meta has its relative path and its detected encoding."""
    root = os.path.abspath(root_dir)
    for path in list_roam_paths(root_dir) if files is None else [os.path.join(root, name) for name in files]:
        text, encoding = decode_text(read_bytes(path))
        relative = _name(path, root_dir)
        yield PretrainSample(text=text, source="roam", meta={"path": relative, "file": relative, "encoding": encoding})


def _name(path: str, root_dir: str) -> str:
    return Path(path).relative_to(os.path.abspath(root_dir)).as_posix()
