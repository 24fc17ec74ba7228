"""Training a SentencePiece model: unigram pieces over raw text, every byte of which can be spelt."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from annotated_types import Ge, Le

from niels_gpt.config import check_value
from niels_gpt.tokenizer.tokenizers import PART_CHARACTERS, RareText
from niels_gpt.tokenizer.vocabulary import BYTE_VALUES, SPECIAL_TOKENS

# A piece at least beside every byte, the chat tokens and `unknown`; ids are stored in 16 bits.
VocabSize = Annotated[int, Ge(BYTE_VALUES + len(SPECIAL_TOKENS) + 2), Le(1 << 16)]
# Bytes of the model depend on the number of threads, so it is part of the definition and not of the machine.
_THREADS = 4
_CHUNK_CHARACTERS = 2000
# SentencePiece adds scores up in float32, of 24 bits. With scores that are multiples of 2^-11 and no character below
# -32 (an unknown one is 10 below the lowest piece), sums over a part of 2^8 characters are exact.
_SCORE_STEP = PART_CHARACTERS * 32 * 2.0**-24
_LOWEST_SCORE = -22.0
# How much larger a vocabulary is trained where entries may be dropped. In two vaults of notes 14 and 16% were; with
# 1.5 the text was cut no better.
_MARGIN = 1.25


def train_sentencepiece(
    texts: Iterable[str], *, vocab_size: int, private: Iterable[bool] = (), min_documents: int = 1
) -> bytes:
    """Return the model file, equal for equal texts. `vocab_size` counts all: pieces, 256 bytes, four chat tokens.

    Nothing is normalised, no space added or removed; newlines are characters like others; rare characters are left to
    the byte pieces, so that they do not crowd a small vocabulary. Scores are rounded, so that a text has one best cut
    for everybody, and not one for each way of adding up.

    `private` has a flag for each text. No entry tells a word that stands in fewer than `min_documents` private texts
    and in no public one: see `RareText`.
    """
    check_value("vocab_size", vocab_size, VocabSize)
    private = list(private)
    if min_documents <= 1 or not any(private):
        return _rounded(_trained(texts, vocab_size=vocab_size))
    texts = list(texts)
    rare = RareText(zip(texts, private, strict=True), min_documents=min_documents)
    # Entries that tell are dropped from a larger vocabulary. Removing rare words from the text instead would also
    # remove what they teach about fragments that are common.
    asked = math.ceil(_MARGIN * vocab_size)
    while True:
        model = _model_proto(_trained(texts, vocab_size=asked, hard_vocab_limit=False))
        kept = [piece for piece in model.pieces if piece.type != piece.NORMAL or not rare.told_by(piece.piece)]
        if len(kept) >= vocab_size:
            break
        if len(model.pieces) < asked:  # all that the text has
            raise ValueError(
                f"vocab_size is {vocab_size:,}: the corpus has {len(kept):,} entries that stand in {min_documents} "
                "private documents or in a public one; set it to that or less, lower tokenizer.min_documents, or add "
                "text"
            )
        asked += 4 * (vocab_size - len(kept)) + vocab_size // 16
    return _rounded(_shortened(model, kept, vocab_size).SerializeToString())


def _trained(texts: Iterable[str], *, vocab_size: int, hard_vocab_limit: bool = True) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=_chunks(texts),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            hard_vocab_limit=hard_vocab_limit,
            byte_fallback=True,
            character_coverage=0.9995,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            control_symbols=list(SPECIAL_TOKENS),
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            max_sentence_length=1 << 20,
            num_threads=_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(_explain(str(error), vocab_size)) from error
    return model.getvalue()


def _model_proto(model: bytes) -> Any:
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

    return ModelProto.FromString(model)


def _shortened(model: Any, kept: list[Any], vocab_size: int) -> Any:
    """Return the model with `vocab_size` of the kept entries: the most probable, and every single character."""
    fixed = [piece.type != piece.NORMAL or len(piece.piece) == 1 for piece in kept]
    if (needed := sum(fixed)) >= vocab_size:
        raise ValueError(_too_small(vocab_size, needed))
    longer = sorted((piece for piece, is_fixed in zip(kept, fixed, strict=True) if not is_fixed), key=_by_score)
    dropped = {piece.piece for piece in longer[vocab_size - needed :]}
    kept = [piece for piece in kept if piece.piece not in dropped]
    del model.pieces[:]
    model.pieces.extend(kept)
    model.trainer_spec.vocab_size, model.trainer_spec.hard_vocab_limit = vocab_size, True
    return model


def _by_score(piece: Any) -> tuple[float, str]:
    return -piece.score, piece.piece


def _rounded(model: bytes) -> bytes:
    proto = _model_proto(model)
    for piece in proto.pieces:
        piece.score = max(round(piece.score / _SCORE_STEP) * _SCORE_STEP, _LOWEST_SCORE)
    return bytes(proto.SerializeToString())


def _chunks(texts: Iterable[str]) -> Iterator[str]:
    """Texts in parts of a bounded length, without NUL: it ends a string for the trainer, and is a byte piece anyway."""
    for text in texts:
        for start in range(0, len(text), _CHUNK_CHARACTERS):
            chunk = text[start : start + _CHUNK_CHARACTERS].replace("\0", "")
            if chunk:
                yield chunk


def _explain(message: str, vocab_size: int) -> str:
    if largest := re.search(r"too high .*?<= (\d+)", message):
        return (
            f"vocab_size is {vocab_size:,}: the corpus has pieces for {int(largest[1]):,} at the most; "
            "set it to that or less, or add text"
        )
    if smallest := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return _too_small(vocab_size, int(smallest[1]))
    return f"the tokenizer could not be trained: {message}"


def _too_small(vocab_size: int, needed: int) -> str:
    return f"vocab_size is {vocab_size:,}: its characters and bytes alone need {needed:,}; set it higher"
