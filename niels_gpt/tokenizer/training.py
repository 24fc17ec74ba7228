"""Training a SentencePiece model: unigram pieces over raw text, every byte of which can be spelt."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from typing import Annotated

from annotated_types import Ge, Le

from niels_gpt.config import check_value
from niels_gpt.tokenizer.sentencepiece import PART_CHARACTERS
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


def train_sentencepiece(texts: Iterable[str], *, vocab_size: int) -> bytes:
    """The model file, equal for equal texts. `vocab_size` counts everything: pieces, 256 bytes, four chat tokens.

    Nothing is normalised, no space added or removed; newlines are characters like others; rare characters are left to
    the byte pieces, so that they do not crowd a small vocabulary. Scores are rounded, so that a text has one best cut
    for everybody, and not one for each way of adding up.
    """
    import sentencepiece

    check_value("vocab_size", vocab_size, VocabSize)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=_chunks(texts),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
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
    return _rounded(model.getvalue())


def _rounded(model: bytes) -> bytes:
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

    proto = ModelProto.FromString(model)
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
        return f"vocab_size is {vocab_size:,}: its characters and bytes alone need {int(smallest[1]):,}; set it higher"
    return f"the tokenizer could not be trained: {message}"
