"""Incremental decoding: the text of tokens as they come, never half a character."""

from __future__ import annotations

import codecs

from niels_gpt.tokenizer.vocabulary import Tokenizer


class IncrementalDecoder:
    """Of UTF-8: the first bytes of a character wait for the token that completes it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        """The text that this token completes; none while a character is not whole."""
        return self._utf8.decode(self._tokenizer.piece(token))

    def rest(self) -> str:
        """At the end: a character that was left unfinished, as U+FFFD."""
        return self._utf8.decode(b"", final=True)
