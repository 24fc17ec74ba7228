"""Text out of tokens as they come: whole characters, up to the first stop string, which is never shown in part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from niels_gpt.inference.engine import Token
from niels_gpt.tokenizer.incremental import IncrementalDecoder
from niels_gpt.tokenizer.vocabulary import Tokenizer


@dataclass(frozen=True)
class Piece:
    """Text that has become certain, and the tokens whose text is in it to its end."""

    text: str = ""
    tokens: tuple[Token, ...] = ()


class StreamedText:
    """The text of one answer. What may be the beginning of a stop string waits until it is clear that it is none."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._decoder, self._stops = IncrementalDecoder(tokenizer), tuple(stops)
        self._held = ""
        self._given, self._made = 0, 0  # characters
        self._waiting: list[tuple[int, Token]] = []  # with the place in the text where each ends
        self.stopped = False

    def add(self, token: Token) -> Piece:
        return self._take(self._decoder.add(token.id), token)

    def rest(self) -> Piece:
        """At the end of the answer: what was held back, and a character that was left unfinished, as U+FFFD."""
        if self.stopped:
            return Piece()
        piece = self._take(self._decoder.rest())
        if self.stopped:
            return piece
        text, self._held = self._held, ""
        return Piece(piece.text + text, (*piece.tokens, *(token for _, token in self._waiting)))

    def _take(self, text: str, token: Token | None = None) -> Piece:
        self._held += text
        self._made += len(text)
        if token is not None:
            self._waiting.append((self._made, token))
        places = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        self.stopped = bool(places)
        certain = min(places) if places else len(self._held) - self._may_begin()
        given, self._held = self._held[:certain], self._held[certain:]
        self._given += len(given)
        out = tuple(token for end, token in self._waiting if end <= self._given)
        self._waiting = self._waiting[len(out) :]
        return Piece(given, out)

    def _may_begin(self) -> int:
        """The length of the longest end of the held text that a stop string begins with."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
