"""Characters of documents as quotes are looked for, and where in a document they stand.

Line ends, tabs, control characters and no-break spaces equal a space, so that a quote may be wrapped at other columns.
Marks of a Markdown block quote ("> " at the beginning of a line) are neither compared nor counted.
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
    """Code points of some documents as they are compared: all texts end to end, with a separator behind each.

    `firsts`: where each text begins. `owners`: the document of each text, ascending. `marks`: (n, 2), where characters
    were left out that are not compared, and how many up to there.
    """

    texts: list[str]
    firsts: np.ndarray
    owners: np.ndarray
    codes: np.ndarray
    marks: np.ndarray

    def hashes(self, length: int, *, step: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """(where they begin, hashes) of the runs of so many characters, one at every `step`."""
        begins = np.arange(0, len(self.codes) - length + 1, step)
        return begins, hash_ranges(self.codes, begins, begins + length)

    def owners_of(self, at: np.ndarray) -> np.ndarray:
        """Return the documents that these characters are in."""
        return self.owners[np.searchsorted(self.firsts, self._places(at), side="right") - 1]

    def spans(self, begins: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
        """Yield (document, first byte in it, byte behind the last, characters) of ranges, each within a text."""
        for first, last in zip(self._places(begins).tolist(), (self._places(ends - 1) + 1).tolist(), strict=True):
            number = int(np.searchsorted(self.firsts, first, side="right")) - 1
            text, owner, begin = self.texts[number], int(self.owners[number]), int(self.firsts[number])
            before = "".join(self.texts[self._texts_of(owner).start : number]) + text[: first - begin]
            inside, start = text[first - begin : last - begin], len(before.encode())
            yield owner, start, start + len(inside.encode()), len(inside)

    def whole(self, document: int) -> str:
        """Return the texts of a document as one."""
        return "".join(self.texts[self._texts_of(document)])

    def _texts_of(self, document: int) -> slice:
        return slice(*np.searchsorted(self.owners, (document, document + 1)).tolist())

    def _places(self, at: np.ndarray) -> np.ndarray:
        """Return where in the texts these characters stand."""
        left_out = np.append(0, self.marks[:, 1])
        return at + left_out[np.searchsorted(self.marks[:, 0], at, side="right")]


def compared(texts: list[str], owners: np.ndarray, *, between: str) -> Characters:
    """Return the characters of texts as they are compared: one kind of whitespace, no marks of block quotes."""
    joined = "".join(text + between for text in texts)
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    codes = np.maximum(codes, ord(" "))  # tabs, line ends, and the other control characters
    codes[codes == _NO_BREAK_SPACE] = ord(" ")
    firsts = np.cumsum([0, *(len(text) + 1 for text in texts[:-1])])
    marks = _MARK.finditer(joined) if ">" in joined else ()
    ranges = np.array([(mark.start() + 1, mark.end()) for mark in marks], dtype=np.int64).reshape(-1, 2)
    sizes = np.cumsum(ranges[:, 1] - ranges[:, 0])
    if len(ranges):
        dropped = np.zeros(len(codes) + 1, dtype=np.int8)
        np.add.at(dropped, ranges, [1, -1])
        codes = codes[np.cumsum(dropped[:-1], dtype=np.int8) == 0]
    return Characters(texts, firsts, owners, codes, np.stack([ranges[:, 1] - sizes, sizes], axis=1))


def document_key(part: str, number: int) -> str:
    """Name a held-out document of texts: its part, and its number among the held-out rows of that."""
    return f"{part}/{number}"


def chat_key(text: str) -> str:
    """Name a chat by the contents of its messages: chats without an answer have no tokens, so numbers would not do."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
