"""Byte and SentencePiece tokenizers, files of all tokenizers, and the search for rare private words in a vocabulary."""

import hashlib
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_gpt.files.atomic import json_text, write_json
from niels_gpt.files.checks import Damaged, read_meta, sha256_file
from niels_gpt.tokenizer.pretrained import BESIDE, HFTokenizer
from niels_gpt.tokenizer.vocabulary import BYTE_VALUES, SPECIAL_NAMES, SPECIAL_TOKENS, Tokenizer

if TYPE_CHECKING:
    import torch

SPACE_MARK = "\u2581"  # SentencePiece's character for a space
# A run of letters and digits. Scripts without spaces (Thai, Lao, Burmese, Khmer, Chinese, Japanese) are excluded: there
# a run is a whole sentence, so only the substring rule of `RareText` applies.
_WORD = re.compile(
    r"[^\W_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)


class RareText:
    """Index of words and substrings found in fewer than `min_documents` private documents and in no public one.

    A vocabulary entry has no space inside, so a document contains it if and only if one of its space-separated strings
    does. Strings that are public or in enough documents are searched as one joined string; each private document then
    only keeps its rare strings, which are short to search.
    """

    def __init__(self, documents: Iterable[tuple[str, bool]], *, min_documents: int) -> None:
        """Build the index from `documents`, pairs of (text, is it private); equal pairs count once."""
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
        # Words of two lower-case letters ("ly", "th") are exempt: they are not names, and without them bits per byte
        # were 0.4% worse.
        self._rare_words = {word for word in rare if len(word) > 2 or not word.islower()}

    def _frequent(self, documents: Iterable[set[str]]) -> set[str]:
        counts = Counter(item for items in documents for item in items)
        return {item for item, count in counts.items() if count >= self._min_documents}

    def told_by(self, entry: str) -> bool:
        """Return whether a vocabulary entry would reveal rare private text.

        It does if it is a rare word itself, or if its text is rare even as a substring of words. Single characters and
        entries without a letter or digit reveal nothing.
        """
        text = entry.removeprefix(SPACE_MARK)
        if len(text) < 2 or not any(map(str.isalnum, text)):
            return False
        if text in self._rare_words:
            return True
        holders = (document for document in self._documents if text in document)
        return text not in self._known and len(list(islice(holders, self._min_documents))) < self._min_documents


# Bytes as tokens (v0): nothing to train, and any text can be encoded. `encode` and `decode` are plain byte functions
# (V = 256); the pipeline's `ByteTokenizer` adds the chat tokens as ids 256..259.


def encode(text: str) -> "torch.LongTensor":
    """Return the UTF-8 bytes of the text as ids: `(n,)` int64 in 0..255."""
    import torch

    ids = torch.from_numpy(np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int64))
    return ids  # type: ignore[return-value]


def decode(ids: "torch.Tensor") -> str:
    """Decode `(n,)` byte ids; invalid UTF-8 becomes U+FFFD, since a model may emit half a character."""
    if ids.dim() != 1:
        raise ValueError(f"decode takes a 1-D tensor of ids, got shape {tuple(ids.shape)}")
    values = ids.tolist()
    if values and not (min(values) >= 0 and max(values) < BYTE_VALUES):
        raise ValueError(f"byte ids lie in 0..255, got {min(values)}..{max(values)}")
    return bytes(values).decode("utf-8", errors="replace")


class ByteTokenizer(Tokenizer):
    """Tokenizer of 256 byte values and the four chat tokens: V = 260."""

    kind = "byte"

    def __init__(self) -> None:
        super().__init__([*(bytes([value]) for value in range(BYTE_VALUES)), *(b"" for _ in SPECIAL_TOKENS)])

    def special_token_ids(self) -> dict[str, int]:
        return {name: BYTE_VALUES + i for i, name in enumerate(SPECIAL_NAMES)}

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode("utf-8"), np.uint8).astype(self.dtype) for text in texts]


PART_CHARACTERS = 256
# Texts are encoded in parts of at most 256 characters, cut before a space: a piece has a space at its start or nowhere,
# so such a cut does not change the result. Only a run of 256 characters without a space is cut elsewhere.
PARTS = re.compile(f"{SPACE_MARK}|[^{SPACE_MARK}]{{1,{PART_CHARACTERS}}}(?= )|[^{SPACE_MARK}]{{1,{PART_CHARACTERS}}}")


class SentencePieceTokenizer(Tokenizer):
    """Tokenizer of a trained SentencePiece model; its four chat tokens are control symbols, so no text encodes to them.

    Lossless: `decode(encode(text)) == text` for every text that UTF-8 can represent. SentencePiece writes a space as
    "▁" and would decode a real "▁" to a space, so that one character is encoded as bytes here.

    SentencePiece sums scores in float32, and rounding errors would decide between segmentations of about equal
    probability: "1000" could be split differently at different positions of a text, or by other libraries. So a text
    is encoded in parts so short that sums of the scores, as `train_sentencepiece` rounds them, are exact.
    """

    kind = "sentencepiece"

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
        super().__init__(self._piece_bytes(i) for i in range(self._spm.GetPieceSize()))
        self._space_mark = [self._spm.PieceToId(f"<0x{byte:02X}>") for byte in SPACE_MARK.encode("utf-8")]

    def special_token_ids(self) -> dict[str, int]:
        ids = [int(self._spm.PieceToId(token)) for token in SPECIAL_TOKENS]
        return dict(zip(SPECIAL_NAMES, ids, strict=True))

    def encode_torch(self, text: str, *, device: str | None = None) -> "torch.Tensor":
        import torch

        return torch.tensor(self.encode(text), dtype=torch.int64, device=device)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text; all parts of all texts are encoded in one call of SentencePiece."""
        cut = [PARTS.findall(text) for text in texts]
        plain = [part for parts in cut for part in parts if part != SPACE_MARK]
        encoded = iter(self._spm.Encode(plain, out_type=int, num_threads=1))
        rows = []
        for parts in cut:
            ids = chain.from_iterable(self._space_mark if part == SPACE_MARK else next(encoded) for part in parts)
            rows.append(np.fromiter(ids, dtype=self.dtype))
        return rows

    def _piece_bytes(self, id: int) -> bytes:
        if self._spm.IsControl(id) or self._spm.IsUnknown(id):
            return b""
        piece: str = self._spm.IdToPiece(id)
        return bytes([int(piece[3:5], 16)]) if self._spm.IsByte(id) else piece.replace(SPACE_MARK, " ").encode("utf-8")


META = "meta.json"  # kind, size, special ids and SHA-256 of the tokenizer beside it
FILE_NAMES = ("tokenizer.json", "spm.model")  # a tokenizer's folder has one of the two


def tokenizer_file(path: str | Path) -> Path:
    """Return the file that defines the tokenizer in a folder; `path` may also be that file itself."""
    path = Path(path)
    if path.is_file():
        return path
    for name in FILE_NAMES:
        if (path / name).is_file():
            return path / name
    raise Damaged(path, f"holds no tokenizer ({' or '.join(FILE_NAMES)})")


def tokenizer_files(path: str | Path) -> list[Path]:
    """Return all files that a copy of the tokenizer needs: its own, and those beside a pretrained model's."""
    file = tokenizer_file(path)
    if file.suffix != ".json" or "kind" in read_meta(file):
        return [file]
    return [file, *(beside for name in (*BESIDE, META) if (beside := file.with_name(name)).is_file())]


def load_tokenizer(path: str | Path, *, vocab_size: int | None = None) -> Tokenizer:
    """Load a tokenizer from a folder, or from a tokenizer.json (bytes, or a pretrained model's) or spm.model.

    `vocab_size` is that of a pretrained model, which may have unused entries after those of its tokenizer; by default
    it is taken from the meta.json next to the file. If there is one, its SHA-256 must match: SentencePiece loaded 73 of
    200 models with one flipped bit without an error, and such a model encodes differently.
    """
    file = tokenizer_file(path)
    meta = file.with_name(META)
    facts = read_meta(meta) if meta.is_file() else {}
    if (known := facts.get("tokenizer_sha256")) is not None:
        if known != sha256_file(file):
            raise Damaged(file, f"is not the tokenizer that {meta} describes: one of the two is damaged")
        vocab_size = vocab_size or facts.get("vocab_size")
    if file.suffix != ".json":
        return SentencePieceTokenizer(file)
    description = read_meta(file)
    if "kind" not in description and "model" in description:
        return HFTokenizer(file, vocab_size=vocab_size)
    if description.get("kind") != ByteTokenizer.kind:
        raise ValueError(f"{file} describes a tokenizer of kind {description.get('kind')!r}; known: byte")
    return ByteTokenizer()


def describe(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a tokenizer's metadata, which for bytes is also the content of tokenizer.json."""
    return {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "special_token_ids": tokenizer.special_token_ids(),
    }


def tokenizer_sha256(tokenizer: Tokenizer) -> str:
    """Return the SHA-256 of the tokenizer's model file, or of tokenizer.json for a byte tokenizer."""
    if tokenizer.model_path is not None:
        return sha256_file(tokenizer.model_path)
    return hashlib.sha256(json_text(describe(tokenizer)).encode("utf-8")).hexdigest()


def write_tokenizer(folder: Path, *, model: bytes | None) -> Tokenizer:
    """Write spm.model, or tokenizer.json for bytes (`model` None), and meta.json; return the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    if model is None:
        write_json(folder / "tokenizer.json", describe(ByteTokenizer()))
    else:
        (folder / "spm.model").write_bytes(model)
    return write_tokenizer_meta(folder)


def copy_tokenizer(source: str | Path, folder: Path, *, vocab_size: int) -> Tokenizer:
    """Copy a tokenizer to a folder, with a new meta.json; `vocab_size` is that of the model, if it is pretrained."""
    folder.mkdir(parents=True, exist_ok=True)
    file, *beside = tokenizer_files(source)
    shutil.copy(file, folder / ("tokenizer.json" if file.suffix == ".json" else "spm.model"))
    for other in beside:
        if other.name != META:
            shutil.copy(other, folder)
    return write_tokenizer_meta(folder, vocab_size=vocab_size)


def write_tokenizer_meta(folder: Path, *, vocab_size: int | None = None) -> Tokenizer:
    """Write meta.json (kind, size, special ids, SHA-256) for the tokenizer in a folder, and return the tokenizer."""
    tokenizer = load_tokenizer(folder, vocab_size=vocab_size)
    write_json(folder / META, {**describe(tokenizer), "tokenizer_sha256": sha256_file(tokenizer_file(folder))})
    return tokenizer
