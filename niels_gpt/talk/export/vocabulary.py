"""A tokenizer's vocabulary, id by id, as other libraries want to have it told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from niels_gpt.tokenizer.bytes import ByteTokenizer
from niels_gpt.tokenizer.sentencepiece import SentencePieceTokenizer
from niels_gpt.tokenizer.vocabulary import BYTE_VALUES, SPECIAL_TOKENS, Tokenizer


@dataclass(frozen=True)
class Piece:
    """What stands behind an id. `text` pieces are cut out of a text, the likelier by `score` (a log probability) the
    sooner; a `byte` spells what no piece has; the others no text encodes to, and they have no bytes."""

    kind: Literal["text", "byte", "chat", "unknown"]
    name: str
    bytes: bytes
    score: float = 0.0


def pieces_of(tokenizer: Tokenizer) -> list[Piece]:
    """In the order of ids."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return _trained_pieces(tokenizer)
    assert isinstance(tokenizer, ByteTokenizer)
    spelt = [Piece("byte", f"<0x{byte:02X}>", bytes([byte])) for byte in range(BYTE_VALUES)]
    return spelt + [Piece("chat", name, b"") for name in SPECIAL_TOKENS]


def _trained_pieces(tokenizer: SentencePieceTokenizer) -> list[Piece]:
    import sentencepiece

    model: Any = sentencepiece.SentencePieceProcessor(model_file=tokenizer.model_path)
    kinds: list[tuple[Literal["byte", "chat", "unknown"], Any]] = [
        ("byte", model.IsByte),
        ("chat", model.IsControl),
        ("unknown", model.IsUnknown),
    ]
    return [
        Piece(
            next((kind for kind, is_one in kinds if is_one(i)), "text"),
            model.IdToPiece(i),
            tokenizer.piece(i),
            model.GetScore(i),
        )
        for i in range(tokenizer.vocab_size)
    ]


def byte_score(pieces: list[Piece]) -> float:
    """Of a byte where bytes and pieces are weighed against one another: less than of any piece, so that a byte is taken
    where there is no piece at all. SentencePiece has the same for a character that it does not know."""
    return min((piece.score for piece in pieces if piece.kind == "text"), default=0.0) - 10.0


def byte_alphabet() -> list[str]:
    """GPT-2's: a visible character for each byte, which byte-level tokenizers write their vocabulary in."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(BYTE_VALUES, 2 * BYTE_VALUES))
    return [chr(byte if byte in visible else next(others)) for byte in range(BYTE_VALUES)]
