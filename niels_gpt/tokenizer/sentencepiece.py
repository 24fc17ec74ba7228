"""Pieces of a trained SentencePiece model as tokens (v1)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_gpt.files.damage import Damaged
from niels_gpt.tokenizer.rare_text import SPACE_MARK
from niels_gpt.tokenizer.vocabulary import SPECIAL_NAMES, SPECIAL_TOKENS, as_list

if TYPE_CHECKING:
    import torch

PART_CHARACTERS = 256
# What is encoded at a time. A piece has a space at its beginning or nowhere, so a cut in front of one changes nothing;
# only where there is none for so long is a text cut elsewhere.
PARTS = re.compile(f"{SPACE_MARK}|[^{SPACE_MARK}]{{1,{PART_CHARACTERS}}}(?= )|[^{SPACE_MARK}]{{1,{PART_CHARACTERS}}}")


class SentencePieceTokenizer:
    """A trained SentencePiece model whose four chat tokens are control symbols: no text encodes to them.

    Lossless: `decode(encode(text)) == text` for every text UTF-8 can carry. SentencePiece itself writes a space as "▁"
    and so reads a real "▁" back as a space; that one character is spelt in bytes here.

    SentencePiece adds up scores in float32, whose rounding decides between cuts that are about equally likely: "1000"
    would be cut differently in different places of a text, and differently from what other libraries do. So a text is
    encoded in parts, within which sums of scores as `train_sentencepiece` rounds them are exact.
    """

    def __init__(self, model_path: str | Path) -> None:
        import sentencepiece

        self.model_path = str(model_path)
        self._spm: Any = sentencepiece.SentencePieceProcessor()
        try:
            self._spm.Load(self.model_path)
        except (OSError, RuntimeError) as error:
            raise Damaged(self.model_path, f"is not a SentencePiece model ({error})") from error
        missing = [token for token in SPECIAL_TOKENS if not self._spm.IsControl(self._spm.PieceToId(token))]
        if missing:
            raise ValueError(f"{self.model_path} lacks the chat tokens {missing} as control symbols: train it again")
        self._pieces = [self._piece_bytes(i) for i in range(self.vocab_size)]
        self._space_mark = [self._spm.PieceToId(f"<0x{byte:02X}>") for byte in SPACE_MARK.encode("utf-8")]

    @property
    def vocab_size(self) -> int:
        return int(self._spm.GetPieceSize())

    def special_token_ids(self) -> dict[str, int]:
        ids = [int(self._spm.PieceToId(token)) for token in SPECIAL_TOKENS]
        return dict(zip(SPECIAL_NAMES, ids, strict=True))

    def encode(self, text: str) -> list[int]:
        return list(next(self._encoded([text])))

    def encode_torch(self, text: str, *, device: str | None = None) -> torch.Tensor:
        import torch

        return torch.tensor(self.encode(text), dtype=torch.int64, device=device)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.fromiter(ids, dtype="<u2") for ids in self._encoded(texts)]

    def _encoded(self, texts: Sequence[str]) -> Iterator[Iterable[int]]:
        """The ids of each text, all of them asked for at once."""
        cut = [PARTS.findall(text) for text in texts]
        plain = [part for parts in cut for part in parts if part != SPACE_MARK]
        encoded = iter(self._spm.Encode(plain, out_type=int, num_threads=1))
        for parts in cut:
            yield chain.from_iterable(self._space_mark if part == SPACE_MARK else next(encoded) for part in parts)

    def decode(self, ids: Iterable[int] | torch.Tensor) -> str:
        """Chat tokens have no text of their own and are left out."""
        return b"".join([self._pieces[i] for i in as_list(ids)]).decode("utf-8", errors="replace")

    def token_bytes(self) -> np.ndarray:
        """How many bytes of text each id stands for: (V,)."""
        return np.array([len(piece) for piece in self._pieces], dtype=np.int64)

    def piece(self, id: int) -> bytes:
        """The bytes an id stands for."""
        return self._pieces[id]

    def _piece_bytes(self, id: int) -> bytes:
        if self._spm.IsControl(id) or self._spm.IsUnknown(id):
            return b""
        piece: str = self._spm.IdToPiece(id)
        return bytes([int(piece[3:5], 16)]) if self._spm.IsByte(id) else piece.replace(SPACE_MARK, " ").encode("utf-8")
