"""The JSON of answers, as OpenAI's two endpoints give it: chat completions, and completions of plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from niels_gpt.inference.engine import Token
from niels_gpt.talk.text import Piece
from niels_gpt.tokenizer.incremental import IncrementalDecoder
from niels_gpt.tokenizer.vocabulary import Tokenizer

Choice = dict[str, Any]


class Form(Protocol):
    """`logprobs`: whether whoever asked wants those of the tokens."""

    prefix: str  # of an answer's id
    whole: str  # what `object` says of a whole answer
    part: str  # and of a part of a streamed one

    def choice(self, index: int, piece: Piece, finish: str) -> Choice: ...
    def opening(self, index: int) -> Choice | None: ...
    def delta(self, index: int, piece: Piece, finish: str | None) -> Choice: ...


class ChatForm:
    prefix, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        self._tokenizer, self._wanted = tokenizer, logprobs

    def choice(self, index: int, piece: Piece, finish: str) -> Choice:
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return {"index": index, "message": message, "logprobs": self._logprobs(piece.tokens), "finish_reason": finish}

    def opening(self, index: int) -> Choice | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, index: int, piece: Piece, finish: str | None) -> Choice:
        delta = {"content": piece.text} if piece.text or not finish else {}
        return {"index": index, "delta": delta, "logprobs": self._logprobs(piece.tokens), "finish_reason": finish}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        return {"content": [self._entry(token) for token in tokens], "refusal": None} if self._wanted else None

    def _entry(self, token: Token) -> dict[str, Any]:
        top = [self._one(id, logprob) for id, logprob in token.top_logprobs]
        return {**self._one(token.id, token.logprob), "top_logprobs": top}

    def _one(self, id: int, logprob: float | None) -> dict[str, Any]:
        piece = self._tokenizer.piece(id)
        return {"token": piece.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(piece)}


class CompletionForm:
    prefix, whole, part = "cmpl", "text_completion", "text_completion"

    def __init__(self, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        self._tokenizer, self._wanted = tokenizer, logprobs
        self._offsets: dict[int, int] = {}  # characters so far, by choice
        self._decoders: dict[int, IncrementalDecoder] = {}

    def choice(self, index: int, piece: Piece, finish: str) -> Choice:
        return self.delta(index, piece, finish)

    def opening(self, index: int) -> Choice | None:
        return None

    def delta(self, index: int, piece: Piece, finish: str | None) -> Choice:
        logprobs = self._logprobs(index, piece.tokens)
        return {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, index: int, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self._wanted:
            return None
        decoder = self._decoders.setdefault(index, IncrementalDecoder(self._tokenizer))
        offsets = []
        for token in tokens:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(decoder.add(token.id))
        return {
            "tokens": [self._name(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{self._name(id): logprob for id, logprob in token.top_logprobs} for token in tokens],
            "text_offset": offsets,
        }

    def _name(self, id: int) -> str:
        """Its text; of a part of a character, as OpenAI writes it, the bytes: names of different tokens differ."""
        piece = self._tokenizer.piece(id)
        try:
            return piece.decode() or f"id:{id}"
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
