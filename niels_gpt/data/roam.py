"""Source kind `roam`: a folder of markdown notes; a document is a file."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from niels_gpt.data.corpus.split import split_rows
from niels_gpt.data.readers.files import decode_text, file_documents, list_files, read_bytes
from niels_gpt.data.types import Document, PretrainSample, Request, Settings

KIND = "roam"
SUFFIXES = (".md",)
PACKED = False


def documents(settings: Settings, request: Request) -> Iterator[Document]:
    """Yield one document per note."""
    return file_documents(iter_roam(request.path, files=request.files))


def list_roam_paths(root_dir: str) -> list[str]:
    """Return the sorted absolute paths of all *.md files below `root_dir`, except hidden ones."""
    return [path for path in list_files(root_dir) if path.endswith(SUFFIXES)]


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
        relative = Path(path).relative_to(root).as_posix()
        yield PretrainSample(text=text, source="roam", meta={"path": relative, "file": relative, "encoding": encoding})
