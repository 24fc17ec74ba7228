"""The byte tokenizer and the SentencePiece tokenizer, and the folder that a tokenizer is saved in."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_gpt.files.atomic import json_text, write_json
from niels_gpt.files.checks import Damaged, sha256_file
from niels_gpt.tokenizer.vocabulary import BYTE_VALUES, SPECIAL_NAMES, SPECIAL_TOKENS, Tokenizer, as_list

if TYPE_CHECKING:
    import torch


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


# Bytes as tokens (v0): nothing to train, no text it cannot spell.
#
# `encode` and `decode` are the bare byte functions, V=256. `ByteTokenizer`, the pipeline's, carries the chat tokens as
# ids 256..259 on top.


def encode(text: str) -> torch.LongTensor:
    """UTF-8 bytes of the text as ids: (n,) int64 in 0..255."""
    import torch

    ids = torch.from_numpy(np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int64))
    return ids  # type: ignore[return-value]


def decode(ids: torch.Tensor) -> str:
    """Bytes back to text; what is not UTF-8 shows as U+FFFD, since a model may emit half a character."""
    if ids.dim() != 1:
        raise ValueError(f"decode takes a 1-D tensor of ids, got shape {tuple(ids.shape)}")
    values = ids.tolist()
    if values and not (min(values) >= 0 and max(values) < BYTE_VALUES):
        raise ValueError(f"byte ids lie in 0..255, got {min(values)}..{max(values)}")
    return bytes(values).decode("utf-8", errors="replace")


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
        return bytes(i for i in as_list(ids) if i < BYTE_VALUES).decode("utf-8", errors="replace")

    def token_bytes(self) -> np.ndarray:
        """How many bytes of text each id stands for: (V,)."""
        return (np.arange(self.vocab_size) < BYTE_VALUES).astype(np.int64)

    def piece(self, id: int) -> bytes:
        """The bytes an id stands for."""
        return bytes([id]) if id < BYTE_VALUES else b""


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


FILE_NAMES = ("tokenizer.json", "spm.model")  # one of the two lies in a tokenizer's folder


def tokenizer_file(path: str | Path) -> Path:
    """The one file that defines the tokenizer in a folder (or the file itself)."""
    path = Path(path)
    if path.is_file():
        return path
    for name in FILE_NAMES:
        if (path / name).is_file():
            return path / name
    raise Damaged(path, f"holds no tokenizer ({' or '.join(FILE_NAMES)})")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a folder that the tokenizer stage wrote, or of one file: tokenizer.json or spm.model.

    Where a meta.json beside it says which bytes it had, it must have them still: a model with one flipped bit is read
    without a word (73 of 200 tried), and encodes otherwise.
    """
    file = tokenizer_file(path)
    meta = file.with_name("meta.json")
    known = _read_description(meta).get("tokenizer_sha256") if meta.is_file() else None
    if known is not None and known != sha256_file(file):
        raise Damaged(file, f"is not the tokenizer that {meta} describes: one of the two is damaged")
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
        return sha256_file(path)
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
    digest = sha256_file(tokenizer_file(folder))
    write_json(folder / "meta.json", {**describe(tokenizer, kind), "tokenizer_sha256": digest})
    return tokenizer


def _read_description(file: Path) -> dict[str, Any]:
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Damaged(file, f"does not describe a tokenizer ({error})") from error
    if not isinstance(description, dict):
        raise Damaged(file, "does not describe a tokenizer (no JSON object)")
    return description
