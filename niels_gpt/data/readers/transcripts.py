"""A file of dialogues, with a delimiter between two. The kinds `primer` and `dialogues` both read it here, so that a
number means the same dialogue in both, and one rule holds out the same ones."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from niels_gpt.data.readers.files import decode_text, read_bytes
from niels_gpt.data.types import PretrainSample


def iter_dialogues(path: str, *, delimiter: str) -> Iterator[PretrainSample]:
    """Every dialogue as a sample, in whatever encoding the file is."""
    text, encoding = decode_text(read_bytes(path))
    for i, dialogue in enumerate(cut_dialogues(text, delimiter)):
        meta = {"path": str(i), "file": os.path.basename(path), "encoding": encoding}
        yield PretrainSample(text=dialogue, source="primer", meta=meta)


def cut_dialogues(text: str, delimiter: str) -> list[str]:
    """Split a text at every delimiter, whose line ends may also be Windows' own."""
    pattern = re.escape(delimiter).replace("\\\n", "\r?\n")
    return [block.strip() for block in re.split(pattern, text) if block.strip()]
