"""Vocabulary entries that would tell a rare word of private text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import islice

SPACE_MARK = "\u2581"  # how SentencePiece writes a space
# A run of letters and digits. In scripts without spaces (Thai, Lao, Burmese, Khmer, Chinese, Japanese) a run is a whole
# sentence: their words are left to the count of substrings.
_WORD = re.compile(
    r"[^\W_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)


class RareText:
    """Substrings and words that stand in fewer than `min_documents` private documents and in no public one.

    An entry has no space inside, so a document holds it if and only if one of its space-separated tokens does. Tokens
    which are public, or in enough documents, are searched as one string; what is left of each document, rare tokens
    alone, is short.
    """

    def __init__(self, documents: Iterable[tuple[str, bool]], *, min_documents: int) -> None:
        """`documents`: texts, and whether each is private. Equal texts count once."""
        self._min_documents = min_documents
        known: set[str] = set()
        private: list[set[str]] = []
        for text, is_private in dict.fromkeys(documents):
            tokens = set(text.replace("\0", "").replace(SPACE_MARK, " ").split(" "))
            if is_private:
                private.append(tokens)
            else:
                known |= tokens
        known |= self._frequent(private)
        self._known = " ".join(known)
        self._documents = [" ".join(tokens - known) for tokens in private]
        words = [set(_WORD.findall(text)) for text in self._documents]
        rare = set().union(*words) - self._frequent(words) - set(_WORD.findall(self._known))
        # Two small letters ("ly", "th") are no name. Without them bits per byte were 0.4% worse.
        self._rare_words = {word for word in rare if len(word) > 2 or not word.islower()}

    def _frequent(self, documents: Iterable[set[str]]) -> set[str]:
        counts = Counter(item for items in documents for item in items)
        return {item for item, count in counts.items() if count >= self._min_documents}

    def told_by(self, entry: str) -> bool:
        """Return whether a vocabulary entry must not be there.

        That is when it is itself a rare word, or when its text is rare even as a part of words. Single characters, and
        entries without a letter or digit, tell nothing.
        """
        text = entry.removeprefix(SPACE_MARK)
        if len(text) < 2 or not any(map(str.isalnum, text)):
            return False
        if text in self._rare_words:
            return True
        holders = (document for document in self._documents if text in document)
        return text not in self._known and len(list(islice(holders, self._min_documents))) < self._min_documents
