"""Byte-level BPE tokenizer of a pretrained model, read from the tokenizer.json of the transformers library."""

import codecs
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_gpt.files.checks import Damaged, read_meta
from niels_gpt.tokenizer.vocabulary import BYTE_VALUES, Tokenizer

if TYPE_CHECKING:
    from niels_gpt.config import Renderer

CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
BESIDE = (CONFIG, TEMPLATE)  # files that belong to a tokenizer.json, where they exist
# Names of the token between documents. Other models name it as `eos_token` in tokenizer_config.json.
_END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>")
_IM_TOKENS = {"im_start": "<|im_start|>", "im_end": "<|im_end|>"}


def byte_alphabet() -> list[str]:
    """Return GPT-2's printable character for each byte, in which byte-level vocabularies are written."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(BYTE_VALUES, 2 * BYTE_VALUES))
    return [chr(byte if byte in visible else next(others)) for byte in range(BYTE_VALUES)]


class HFTokenizer(Tokenizer):
    """Byte-level BPE of a tokenizer.json; ids equal those of the `tokenizers` package for text without control tokens.

    Added tokens ("<|im_start|>") never come from text: the text is encoded by a copy of the tokenizer without them.

    Lossless: `decode(encode(text)) == text` for every text that UTF-8 can represent. A normalizer NFC, as Qwen's, is
    left out for that: text that is not in NFC gets other ids than in transformers. Vocabularies such as SmolLM2's lack
    bytes that were not in their training text, and `tokenizers` would drop these; see `_StandIns`.
    """

    kind = "hf"
    model_path: str

    def __init__(self, path: str | Path, *, vocab_size: int | None = None) -> None:
        """Read tokenizer.json; `vocab_size` is that of the model, which may have unused entries at the end."""
        import tokenizers

        # Threads of `cache.token_parts` encode side by side; the package's own threads do not survive a fork.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.model_path = str(path)
        # Kept in memory: the folder may be a temporary one.
        beside = [file for name in BESIDE if (file := Path(path).with_name(name)).is_file()]
        self.files = {file.name: file.read_bytes() for file in (Path(path), *beside)}
        self.config = read_meta(Path(path).with_name(CONFIG)) if CONFIG in self.files else {}
        self.described = described = read_meta(path)
        _check(described, path)
        added = {token["content"]: token for token in described.get("added_tokens") or []}
        self.control = {name: int(token["id"]) for name, token in added.items()}
        plain = _without(described, added)
        try:
            self._bpe = tokenizers.Tokenizer.from_str(json.dumps(plain))
        except Exception as error:  # the package raises plain Exception
            raise Damaged(path, f"is not a tokenizer that the package tokenizers can read ({error})") from error
        pieces = _pieces(plain["model"]["vocab"], added, path)
        entries = len(pieces)
        if vocab_size is not None and vocab_size < entries:
            raise ValueError(f"{path} has {entries:,} entries, and the model only {vocab_size:,}: they do not match")
        super().__init__(pieces + [b""] * ((vocab_size or entries) - entries))
        self._stand_ins = _StandIns({piece: id for id, piece in enumerate(pieces) if piece}, path)
        self.text_errors = self._stand_ins.errors
        eot = next((self.control[name] for name in _END_OF_TEXT if name in self.control), self.named_id("eos_token"))
        if eot is None:
            raise ValueError(
                f"{path} has no token that ends a text ({', '.join(_END_OF_TEXT)}, or eos_token in {CONFIG})"
            )
        self._special = {"eot": eot}
        self._special |= {key: self.control[name] for key, name in _IM_TOKENS.items() if name in self.control}

    @property
    def chat_template(self) -> str | None:
        """Return the Jinja chat template that comes with the tokenizer; None if there is none."""
        if TEMPLATE in self.files:
            return self.files[TEMPLATE].decode("utf-8")
        found = self.config.get("chat_template")
        if isinstance(found, list):  # several templates by name
            found = {entry["name"]: entry["template"] for entry in found}.get("default")
        return found

    def special_token_ids(self) -> dict[str, int]:
        """Return the ids of "eot" (between documents) and, for ChatML, of "im_start" and "im_end"."""
        return dict(self._special)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text; all parts of all texts are encoded in one call, without the GIL."""
        cut = [self._stand_ins.cut(text) for text in texts]
        plain = [part for parts in cut for part in parts[::2]]
        encoded = iter(self._bpe.encode_batch_fast(plain, add_special_tokens=False))
        rows = []
        for parts in cut:
            ids: list[int] = []
            for number, part in enumerate(parts):
                ids += self._stand_ins.encode(part) if number % 2 else next(encoded).ids
            rows.append(np.array(ids, dtype=self.dtype))
        return rows

    def named_id(self, key: str) -> int | None:
        """Return the id of the control token that tokenizer_config.json names ("bos_token"); None if there is none."""
        token = self.config.get(key)
        return self.control.get(token.get("content") if isinstance(token, dict) else token)


def renderer_for(tokenizer: Tokenizer, *, chats: bool = True) -> "Renderer":
    """Return the chat format of models with this tokenizer; `chats`: the model was fine-tuned on chats."""
    if isinstance(tokenizer, HFTokenizer):
        return "chatml" if chats or "im_start" in tokenizer.special_token_ids() else "transcript"
    return "chat_tokens" if chats else "transcript"


class _StandIns:
    """Spelling of the bytes that a vocabulary lacks.

    Byte b of an ASCII character, or of the head of a 4-byte character, is written as the continuation byte with the
    same low six bits: no valid text has one at the start of a character, so it can be told apart and translated back.
    Texts keep their number of bytes. `errors` names the codec error handler that translates back. It needs a 4-byte
    character whole; streamed token by token, such a character (U+40000 to U+BFFFF, unassigned) decodes to U+FFFD.
    """

    def __init__(self, entries: Mapping[bytes, int], path: str | Path) -> None:
        """Find the bytes that have no entry of their own, and a stand-in for each that can occur in UTF-8."""
        self._ids = ids = {piece[0]: id for piece, id in entries.items() if len(piece) == 1}
        in_text = [byte for byte in range(BYTE_VALUES) if byte not in (0xC0, 0xC1) and byte < 0xF5]
        self._stand_ins = missing = {byte: 0x80 | byte & 0x3F for byte in in_text if byte not in ids}
        spelt = all(byte < 0x80 or byte >= 0xF0 for byte in missing) and all(b in ids for b in missing.values())
        if not spelt or len(set(missing.values())) < len(missing):
            names = ", ".join(f"0x{byte:02X}" for byte in missing)
            raise ValueError(f"{path} has no entries for the bytes {names}: text with these could not be encoded")
        self._bytes = {stand_in: byte for byte, stand_in in missing.items()}
        self.errors = "replace"
        if missing:
            singles = "".join(rf"\x{byte:02x}" for byte in missing if byte < 0x80)
            heads = "".join(
                f"\\U{_first_of(byte):08x}-\\U{min(_first_of(byte + 1) - 1, 0x10FFFF):08x}"
                for byte in missing
                if byte >= 0x80
            )
            self._missing = re.compile(f"([{singles}{heads}]+)")
            self.errors = "stand-ins-" + bytes(sorted(missing)).hex()
            codecs.register_error(self.errors, self._translate)

    def cut(self, text: str) -> list[str]:
        """Split a text; entries at odd indices consist of characters that need a stand-in."""
        return self._missing.split(text) if self._stand_ins else [text]

    def encode(self, text: str) -> list[int]:
        """Return the ids of such characters, one for each byte."""
        return [self._ids[self._stand_ins.get(byte, byte)] for byte in text.encode("utf-8")]

    def _translate(self, error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        data, start = error.object, error.start
        byte = self._bytes.get(data[start])
        if byte is not None:
            whole = bytes([byte]) + (data[start + 1 : start + 4] if byte >= 0x80 else b"")
            with suppress(UnicodeDecodeError):
                return whole.decode("utf-8"), start + len(whole)
        return "\ufffd", error.end


def _first_of(head: int) -> int:
    """Return the first code point whose UTF-8 form begins with this head of a 4-byte character."""
    return max(0x10000, (head & 0x07) << 18)


def _check(described: Mapping[str, Any], path: str | Path) -> None:
    """Raise a ValueError unless the tokenizer is a byte-level BPE that loses nothing."""
    model = described.get("model") or {}
    if model.get("type") != "BPE" or model.get("dropout"):
        raise ValueError(f"{path} is a {model.get('type')} tokenizer: only byte-level BPE can be used")
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise ValueError(f"{path} marks parts of words by a prefix or suffix: only byte-level BPE can be used")
    normalizers = members(described.get("normalizer"), "normalizers")
    if lossy := [one.get("type") for one in normalizers if one.get("type") != "NFC"]:
        raise ValueError(f"{path} changes text before encoding it (normalizer {', '.join(map(str, lossy))})")
    steps = members(described.get("pre_tokenizer"), "pretokenizers")
    if not any(step.get("type") == "ByteLevel" for step in steps):
        raise ValueError(f"{path} has no ByteLevel pre-tokenizer: only byte-level BPE can be used")
    for step in steps:
        kept = {
            "ByteLevel": not step.get("add_prefix_space", True),
            "Digits": True,
            "Split": step.get("behavior") != "Removed",
        }
        if not kept.get(str(step.get("type")), False):
            raise ValueError(f"{path} adds or drops characters (pre-tokenizer {step.get('type')})")


def members(step: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    """Return the single steps of a normalizer or pre-tokenizer, which may be a (nested) sequence."""
    if not step:
        return []
    if step.get("type") != "Sequence":
        return [step]
    return [inner for member in step[key] for inner in members(member, key)]


def _without(described: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokenizer for plain text: no added token can be matched, nor be the product of merges."""
    model = dict(described["model"])
    pairs = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model.get("merges", [])]
    model["vocab"] = {entry: id for entry, id in model.get("vocab", {}).items() if entry not in added}
    model["merges"] = [list(pair) for pair in pairs if not {*pair, "".join(pair)} & added.keys()]
    model["unk_token"] = None
    nothing = dict.fromkeys(("normalizer", "post_processor", "truncation", "padding"))
    return {**described, **nothing, "added_tokens": [], "model": model}


def _pieces(vocab: Mapping[str, int], added: Mapping[str, Any], path: str | Path) -> list[bytes]:
    """Return the text bytes of each id: empty for special tokens, the name for other added tokens ("<think>")."""
    value = {character: byte for byte, character in enumerate(byte_alphabet())}
    by_id = {int(token["id"]): b"" if token.get("special") else name.encode() for name, token in added.items()}
    for entry, id in vocab.items():
        try:
            by_id[int(id)] = bytes(value[character] for character in entry)
        except KeyError:
            raise ValueError(f"{path} has the entry {entry!r}, which is not written in bytes") from None
    return [by_id.get(id, b"") for id in range(max(by_id, default=-1) + 1)]
