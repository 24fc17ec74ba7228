"""Text to ids and back: bytes (v0), or SentencePiece pieces (v1), each with the same four chat tokens.

`encode` and `decode` are the bare byte functions, V=256. The pipeline's byte tokenizer carries the chat tokens as ids
256..259 on top. The strings in SPECIAL_TOKENS name the chat tokens; found in a *text* they are plain text, and only
`niels_gpt.chat_template` emits their ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from niels_gpt.atomic import json_text, write_json

if TYPE_CHECKING:  # torch takes 1.4 s to import; stages that only encode text do without it
    import torch

SPECIAL_NAMES = ("sys", "usr", "asst", "eot")
SPECIAL_TOKENS = tuple(f"<|ngpt_{name}_84a5023f67d74cf29cc4001becde983c|>" for name in SPECIAL_NAMES)
BYTE_VALUES = 256
_SPACE_MARK = "\u2581"  # how SentencePiece writes a space


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
    def piece(self, id: int) -> bytes: ...


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

    def piece(self, id: int) -> bytes:
        """The bytes an id stands for."""
        return bytes([id]) if id < BYTE_VALUES else b""


class SentencePieceTokenizer:
    """A trained SentencePiece model whose four chat tokens are control symbols: no text encodes to them.

    Lossless: `decode(encode(text)) == text` for every text UTF-8 can carry. SentencePiece itself writes a space as "▁"
    and so reads a real "▁" back as a space; that one character is spelt in bytes here.
    """

    def __init__(self, model_path: str | Path) -> None:
        import sentencepiece

        self.model_path = str(model_path)
        self._spm: Any = sentencepiece.SentencePieceProcessor()
        try:
            self._spm.Load(self.model_path)
        except (OSError, RuntimeError) as error:
            raise ValueError(
                f"{self.model_path} is not a SentencePiece model ({error}): `dvc repro -f tokenizer` makes one"
            ) from error
        missing = [token for token in SPECIAL_TOKENS if not self._spm.IsControl(self._spm.PieceToId(token))]
        if missing:
            raise ValueError(f"{self.model_path} lacks the chat tokens {missing} as control symbols: train it again")
        self._pieces = [self._piece_bytes(i) for i in range(self.vocab_size)]
        self._space_mark = [self._spm.PieceToId(f"<0x{byte:02X}>") for byte in _SPACE_MARK.encode("utf-8")]

    @property
    def vocab_size(self) -> int:
        return int(self._spm.GetPieceSize())

    def special_token_ids(self) -> dict[str, int]:
        ids = [int(self._spm.PieceToId(token)) for token in SPECIAL_TOKENS]
        return dict(zip(SPECIAL_NAMES, ids, strict=True))

    def encode(self, text: str) -> list[int]:
        if _SPACE_MARK not in text:
            return list(self._spm.EncodeAsIds(text))
        ids: list[int] = []
        for i, part in enumerate(text.split(_SPACE_MARK)):
            ids += [*(self._space_mark if i else []), *self._spm.EncodeAsIds(part)]
        return ids

    def encode_torch(self, text: str, *, device: str | None = None) -> torch.Tensor:
        import torch

        return torch.tensor(self.encode(text), dtype=torch.int64, device=device)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        plain = [text for text in texts if _SPACE_MARK not in text]
        encoded = iter(self._spm.Encode(plain, out_type=int, num_threads=1))
        lists = (self.encode(text) if _SPACE_MARK in text else next(encoded) for text in texts)
        return [np.array(ids, dtype="<u2") for ids in lists]

    def decode(self, ids: Iterable[int] | torch.Tensor) -> str:
        """Chat tokens have no text of their own and are left out."""
        return b"".join([self._pieces[i] for i in _as_list(ids)]).decode("utf-8", errors="replace")

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
        return bytes([int(piece[3:5], 16)]) if self._spm.IsByte(id) else piece.replace(_SPACE_MARK, " ").encode("utf-8")


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
    """The tokenizer in a folder that the tokenizer stage wrote, or of one file: tokenizer.json or spm.model.

    Where a meta.json beside it says which bytes it had, it must have them still: a model with one flipped bit is read
    without a word (73 of 200 tried), and encodes otherwise.
    """
    file = tokenizer_file(path)
    meta = file.with_name("meta.json")
    known = _read_description(meta).get("tokenizer_sha256") if meta.is_file() else None
    if known is not None and known != _sha256(file):
        raise ValueError(
            f"{file} is not the tokenizer that {meta} describes, one of the two is damaged: `dvc checkout` brings them "
            "back, `dvc repro -f tokenizer` makes them anew"
        )
    if file.suffix != ".json":
        return SentencePieceTokenizer(file)
    kind = _read_description(file).get("kind")
    if kind != "byte":
        raise ValueError(f"{file} describes a tokenizer of kind {kind!r}; known: byte")
    return ByteTokenizer()


def describe(tokenizer: Tokenizer, kind: str) -> dict[str, Any]:
    """What tokenizer.json holds for a tokenizer that needs no model file."""
    return {"kind": kind, "vocab_size": tokenizer.vocab_size, "special_token_ids": tokenizer.special_token_ids()}


def tokenizer_sha256(tokenizer: Tokenizer) -> str:
    """Of the file that defines it: the model, or for bytes, which need none, the description in its place."""
    path = getattr(tokenizer, "model_path", None)
    if path:
        return _sha256(Path(path))
    return hashlib.sha256(json_text(describe(tokenizer, "byte")).encode("utf-8")).hexdigest()


def write_tokenizer(folder: Path, *, model: bytes | None) -> Tokenizer:
    """spm.model, or for bytes (no model) tokenizer.json, and meta.json beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    if model is None:
        write_json(folder / "tokenizer.json", describe(ByteTokenizer(), "byte"))
    else:
        (folder / "spm.model").write_bytes(model)
    return write_tokenizer_meta(folder)


def write_tokenizer_meta(folder: Path) -> Tokenizer:
    """Beside the file that defines a tokenizer, a meta.json that says what it is and which bytes it has."""
    tokenizer = load_tokenizer(folder)
    kind = "byte" if isinstance(tokenizer, ByteTokenizer) else "sentencepiece"
    write_json(folder / "meta.json", {**describe(tokenizer, kind), "tokenizer_sha256": _sha256(tokenizer_file(folder))})
    return tokenizer


def _read_description(file: Path) -> dict[str, Any]:
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} does not describe a tokenizer ({error}): `dvc repro -f tokenizer`") from error
    if not isinstance(description, dict):
        raise ValueError(f"{file} does not describe a tokenizer (no JSON object): `dvc repro -f tokenizer`")
    return description


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _as_list(ids: Iterable[int] | torch.Tensor) -> Iterable[int]:
    return ids.tolist() if hasattr(ids, "tolist") else ids
