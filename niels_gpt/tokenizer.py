"""Text to ids and back: bytes (v0), or SentencePiece pieces (v1), each with the same four chat tokens.

`encode` and `decode` are the bare byte functions, V=256. The pipeline's byte tokenizer carries the chat tokens as ids
256..259 on top. The strings in SPECIAL_TOKENS name the chat tokens; found in a *text* they are plain text, and only
`niels_gpt.chat_template` emits their ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:  # torch takes 1.4 s to import; stages that only encode text do without it
    import torch

SPECIAL_NAMES = ("sys", "usr", "asst", "eot")
SPECIAL_TOKENS = tuple(f"<|ngpt_{name}_84a5023f67d74cf29cc4001becde983c|>" for name in SPECIAL_NAMES)
BYTE_VALUES = 256


def encode(text: str) -> torch.LongTensor:
    """UTF-8 bytes of the text as ids: (n,) int64 in 0..255."""
    import torch

    # bytearray: torch wants memory it may write to. An empty buffer is refused, hence the branch.
    data = bytearray(text.encode("utf-8"))
    ids = torch.frombuffer(data, dtype=torch.uint8).long() if data else torch.empty(0, dtype=torch.int64)
    return ids  # type: ignore[return-value]


def decode(ids: torch.Tensor) -> str:
    """Bytes back to text; what is not UTF-8 shows as U+FFFD, since a model may emit half a character."""
    if ids.dim() != 1:
        raise ValueError(f"decode takes a 1-D tensor of ids, got shape {tuple(ids.shape)}")
    values = ids.tolist()
    if values and not (min(values) >= 0 and max(values) < BYTE_VALUES):
        raise ValueError(f"byte ids lie in 0..255, got {min(values)}..{max(values)}")
    return bytes(values).decode("utf-8", errors="replace")


class Tokenizer(Protocol):
    """What the pipeline asks of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...
    def special_token_ids(self) -> dict[str, int]: ...
    def encode(self, text: str) -> list[int]: ...
    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]: ...
    def decode(self, ids: Iterable[int] | torch.Tensor) -> str: ...
    def token_bytes(self) -> np.ndarray: ...


class ByteTokenizer:
    """256 byte values, then the four chat tokens: V = 260. Nothing to train."""

    vocab_size = BYTE_VALUES + len(SPECIAL_TOKENS)

    def special_token_ids(self) -> dict[str, int]:
        return {name: BYTE_VALUES + i for i, name in enumerate(SPECIAL_NAMES)}

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode("utf-8"), np.uint8).astype("<u2") for text in texts]

    def decode(self, ids: Iterable[int] | torch.Tensor) -> str:
        """Chat tokens have no text of their own and are left out."""
        return bytes(i for i in _as_list(ids) if i < BYTE_VALUES).decode("utf-8", errors="replace")

    def token_bytes(self) -> np.ndarray:
        """How many bytes of text each id stands for: (V,)."""
        return (np.arange(self.vocab_size) < BYTE_VALUES).astype(np.int64)


class SentencePieceTokenizer:
    """A trained SentencePiece model whose four chat tokens are control symbols: no text encodes to them."""

    def __init__(self, model_path: str | Path) -> None:
        import sentencepiece

        self.model_path = str(model_path)
        self._spm: Any = sentencepiece.SentencePieceProcessor()
        try:
            self._spm.Load(self.model_path)
        except (OSError, RuntimeError) as error:
            raise ValueError(f"{self.model_path} is not a SentencePiece model: {error}") from error
        missing = [token for token in SPECIAL_TOKENS if not self._spm.IsControl(self._spm.PieceToId(token))]
        if missing:
            raise ValueError(f"{self.model_path} lacks the chat tokens {missing} as control symbols: train it again")

    @property
    def vocab_size(self) -> int:
        return int(self._spm.GetPieceSize())

    def special_token_ids(self) -> dict[str, int]:
        return {
            name: int(self._spm.PieceToId(token)) for name, token in zip(SPECIAL_NAMES, SPECIAL_TOKENS, strict=True)
        }

    def encode(self, text: str) -> list[int]:
        return list(self._spm.EncodeAsIds(text))

    def encode_torch(self, text: str, *, device: str | None = None) -> torch.Tensor:
        import torch

        return torch.tensor(self.encode(text), dtype=torch.int64, device=device)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.asarray(ids, dtype="<u2") for ids in self._spm.EncodeAsIds(list(texts))]

    def decode(self, ids: Iterable[int] | torch.Tensor) -> str:
        return str(self._spm.DecodeIds([int(i) for i in _as_list(ids)]))

    def token_bytes(self) -> np.ndarray:
        """How many bytes of text each id stands for: (V,)."""
        lengths = []
        for i in range(self.vocab_size):
            if self._spm.IsControl(i) or self._spm.IsUnknown(i):
                lengths.append(0)
            elif self._spm.IsByte(i):
                lengths.append(1)
            else:  # "▁" is how SentencePiece writes a space
                lengths.append(len(self._spm.IdToPiece(i).replace("▁", " ").encode("utf-8")))
        return np.array(lengths, dtype=np.int64)


def tokenizer_file(path: str | Path) -> Path:
    """The one file that defines the tokenizer in a folder (or the file itself)."""
    path = Path(path)
    if path.is_file():
        return path
    for name in ("tokenizer.json", "spm.model"):
        if (path / name).is_file():
            return path / name
    raise ValueError(f"{path} holds no tokenizer (tokenizer.json or spm.model): `dvc repro tokenizer` makes one")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a folder that the tokenizer stage wrote, or of one file: tokenizer.json or spm.model."""
    file = tokenizer_file(path)
    if file.suffix != ".json":
        return SentencePieceTokenizer(file)
    try:
        kind = json.loads(file.read_text(encoding="utf-8"))["kind"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} does not describe a tokenizer ({error!r}): `dvc repro -f tokenizer`") from error
    if kind != "byte":
        raise ValueError(f"{file} describes a tokenizer of kind {kind!r}; known: byte")
    return ByteTokenizer()


def describe(tokenizer: Tokenizer, kind: str) -> dict[str, Any]:
    """What tokenizer.json holds for a tokenizer that needs no model file."""
    return {"kind": kind, "vocab_size": tokenizer.vocab_size, "special_token_ids": tokenizer.special_token_ids()}


def _as_list(ids: Iterable[int] | torch.Tensor) -> Iterable[int]:
    return ids.tolist() if hasattr(ids, "tolist") else ids
