"""Normalized characters of documents, as compared by the search for quotes, and their positions in the documents.

Line ends, tabs, control characters and no-break spaces equal a space, so that a quote may be wrapped at other columns.
Markdown block-quote markers ("> " at the beginning of a line) are neither compared nor counted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from niels_gpt.data.corpus.sketch import hash_ranges

_MARK, _NO_BREAK_SPACE = re.compile(r"\n[ \t]*>[> \t]*"), 0xA0


@dataclass(frozen=True)
class Characters:
    """Normalized code points of a batch of documents: all texts concatenated, with a separator after each.

    `firsts`: start of each text in the concatenation. `owners`: document number of each text, ascending. `codes`: the
    code points that remain after block-quote markers are dropped. `marks`: (n, 2), for each marker the index in `codes`
    where it was dropped, and the number of characters dropped so far.
    """

    texts: list[str]
    firsts: np.ndarray
    owners: np.ndarray
    codes: np.ndarray
    marks: np.ndarray

    def hashes(self, length: int, *, step: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return (starts, hashes) of the runs of `length` characters that start at every `step`-th character."""
        begins = np.arange(0, len(self.codes) - length + 1, step)
        return begins, hash_ranges(self.codes, begins, begins + length)

    def owners_of(self, at: np.ndarray) -> np.ndarray:
        """Return the document number of each index into `codes`."""
        return self.owners[np.searchsorted(self.firsts, self._places(at), side="right") - 1]

    def spans(self, begins: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
        """Yield (document, start byte, end byte, number of characters) of ranges of `codes`, each within one text."""
        for first, last in zip(self._places(begins).tolist(), (self._places(ends - 1) + 1).tolist(), strict=True):
            number = int(np.searchsorted(self.firsts, first, side="right")) - 1
            text, owner, begin = self.texts[number], int(self.owners[number]), int(self.firsts[number])
            before = "".join(self.texts[self._texts_of(owner).start : number]) + text[: first - begin]
            inside, start = text[first - begin : last - begin], len(before.encode())
            yield owner, start, start + len(inside.encode()), len(inside)

    def whole(self, document: int) -> str:
        """Return the concatenated texts of a document."""
        return "".join(self.texts[self._texts_of(document)])

    def _texts_of(self, document: int) -> slice:
        return slice(*np.searchsorted(self.owners, (document, document + 1)).tolist())

    def _places(self, at: np.ndarray) -> np.ndarray:
        """Convert indices into `codes` to positions in the concatenated texts."""
        left_out = np.append(0, self.marks[:, 1])
        return at + left_out[np.searchsorted(self.marks[:, 0], at, side="right")]


def compared(texts: list[str], owners: np.ndarray, *, between: str) -> Characters:
    """Normalize texts as described above; `owners`: document of each text, `between`: separator of one character."""
    joined = "".join(text + between for text in texts)
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    codes = np.maximum(codes, ord(" "))  # tabs, line ends and the other control characters lie below the space
    codes[codes == _NO_BREAK_SPACE] = ord(" ")
    firsts = np.cumsum([0, *(len(text) + 1 for text in texts[:-1])])
    marks = _MARK.finditer(joined) if ">" in joined else ()
    ranges = np.array([(mark.start() + 1, mark.end()) for mark in marks], dtype=np.int64).reshape(-1, 2)
    sizes = np.cumsum(ranges[:, 1] - ranges[:, 0])
    if len(ranges):
        # Difference array: +1 where a marker starts, -1 where it ends; its running sum is 0 outside of markers.
        dropped = np.zeros(len(codes) + 1, dtype=np.int8)
        np.add.at(dropped, ranges, [1, -1])
        codes = codes[np.cumsum(dropped[:-1], dtype=np.int8) == 0]
    return Characters(texts, firsts, owners, codes, np.stack([ranges[:, 1] - sizes, sizes], axis=1))


def document_key(part: str, number: int) -> str:
    """Return the key of a held-out document: its part, and its number among the held-out rows of that part."""
    return f"{part}/{number}"


def chat_key(text: str) -> str:
    """Return the key of a chat: a hash of the contents of its messages.

    Row numbers would not do: chats without an answer are not tokenized, so numbers shift.
    """
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
