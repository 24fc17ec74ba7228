"""Training of SentencePiece unigram models with byte fallback, without rare words of private documents."""

import io
import math
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from annotated_types import Ge, Le

from niels_gpt.config import Count, Section, Seed, check_value
from niels_gpt.tokenizer.tokenizers import PART_CHARACTERS, RareText
from niels_gpt.tokenizer.vocabulary import BYTE_VALUES, SPECIAL_TOKENS

# At least one entry besides 256 bytes, the chat tokens and `unknown`; ids are stored in 16 bits.
VocabSize = Annotated[int, Ge(BYTE_VALUES + len(SPECIAL_TOKENS) + 2), Le(1 << 16)]
# The trained model depends on the number of threads, so it is a constant and not a property of the machine.
_THREADS = 4
_CHUNK_CHARACTERS = 2000
# SentencePiece sums scores in float32, which has a 24-bit significand. With scores that are multiples of 2^-11 and at
# least -32 per character (an unknown one is 10 below the lowest entry), sums over parts of 2^8 characters are exact.
_SCORE_STEP = PART_CHARACTERS * 32 * 2.0**-24
_LOWEST_SCORE = -22.0
# Factor by which a larger vocabulary is trained if entries may be dropped. In two vaults of notes 14% and 16% were
# dropped; 1.5 gave no better segmentation.
_MARGIN = 1.25


class SentencePieceRules(Section):
    """Parameters of a vocabulary that is trained."""

    vocab_size: Annotated[VocabSize, "entries, with bytes and chat tokens"]
    sample_bytes: Annotated[Count, "text to train on, at the most"] = 10_000_000
    seed: Annotated[Seed, "of the choice of that text"]
    min_documents: Annotated[
        Count, "no entry tells a word in fewer private documents and in no public source; 1: any word may be an entry"
    ] = 5


def train_sentencepiece(
    texts: Iterable[str], *, vocab_size: int, private: Iterable[bool] = (), min_documents: int = 1
) -> bytes:
    """Return the bytes of a trained model file; equal texts give equal bytes.

    `vocab_size` counts all entries, including `unknown`, 256 bytes and the four chat tokens. Text is not normalized, no
    space is added or removed, and newlines are ordinary characters. Rare characters are encoded as bytes, so that they
    do not crowd a small vocabulary. Scores are rounded so that the best segmentation of a text does not depend on the
    order in which an implementation sums them.

    `private` has a flag for each text. No entry reveals a word that occurs in fewer than `min_documents` private texts
    and in no public one; see `RareText`.
    """
    check_value("vocab_size", vocab_size, VocabSize)
    private = list(private)
    if min_documents <= 1 or not any(private):
        return _rounded(_trained(texts, vocab_size=vocab_size))
    texts = list(texts)
    rare = RareText(zip(texts, private, strict=True), min_documents=min_documents)
    # Train a larger vocabulary and drop the entries that reveal rare words. Removing rare words from the text instead
    # would also remove their counts of common fragments.
    asked = math.ceil(_MARGIN * vocab_size)
    while True:
        model = _trained(texts, vocab_size=asked, hard_vocab_limit=False)
        kept = [piece for piece in model.pieces if piece.type != piece.NORMAL or not rare.told_by(piece.piece)]
        if len(kept) >= vocab_size:
            break
        if len(model.pieces) < asked:  # the text has no more entries to offer
            raise ValueError(
                f"vocab_size is {vocab_size:,}: the corpus has {len(kept):,} entries that stand in {min_documents} "
                "private documents or in a public one; set it to that or less, lower tokenizer.min_documents, or add "
                "text"
            )
        asked += 4 * (vocab_size - len(kept)) + vocab_size // 16
    return _rounded(_shortened(model, kept, vocab_size))


def _trained(texts: Iterable[str], *, vocab_size: int, hard_vocab_limit: bool = True) -> Any:
    """Return the trained ModelProto; without `hard_vocab_limit`, it may have fewer entries."""
    import sentencepiece
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

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
    return ModelProto.FromString(model.getvalue())


def _shortened(model: Any, kept: list[Any], vocab_size: int) -> Any:
    """Return the model cut to `vocab_size` entries: bytes, special tokens, characters, and the most probable others."""
    fixed = [piece.type != piece.NORMAL or len(piece.piece) == 1 for piece in kept]
    if (needed := sum(fixed)) >= vocab_size:
        raise ValueError(_too_small(vocab_size, needed))
    longer = [piece for piece, is_fixed in zip(kept, fixed, strict=True) if not is_fixed]
    longer.sort(key=lambda piece: (-piece.score, piece.piece))
    dropped = {piece.piece for piece in longer[vocab_size - needed :]}
    kept = [piece for piece in kept if piece.piece not in dropped]
    del model.pieces[:]
    model.pieces.extend(kept)
    model.trainer_spec.vocab_size, model.trainer_spec.hard_vocab_limit = vocab_size, True
    return model


def _rounded(model: Any) -> bytes:
    """Return the bytes of the model with scores rounded to multiples of `_SCORE_STEP`, at least `_LOWEST_SCORE`."""
    for piece in model.pieces:
        piece.score = max(round(piece.score / _SCORE_STEP) * _SCORE_STEP, _LOWEST_SCORE)
    return bytes(model.SerializeToString())


def _chunks(texts: Iterable[str]) -> Iterator[str]:
    """Yield chunks of at most 2,000 characters, without NULs, which would end a string in the trainer.

    NUL can still be encoded: it has a byte entry.
    """
    for text in texts:
        for start in range(0, len(text), _CHUNK_CHARACTERS):
            if chunk := text[start : start + _CHUNK_CHARACTERS].replace("\0", ""):
                yield chunk


def _explain(message: str, vocab_size: int) -> str:
    """Translate the trainer's error message into one that says how to change vocab_size."""
    if largest := re.search(r"too high .*?<= (\d+)", message):
        return (
            f"vocab_size is {vocab_size:,}: the corpus allows at most {int(largest[1]):,} entries; "
            "set it to that or less, or add text"
        )
    if smallest := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return _too_small(vocab_size, int(smallest[1]))
    return f"the tokenizer could not be trained: {message}"


def _too_small(vocab_size: int, needed: int) -> str:
    return f"vocab_size is {vocab_size:,}: its characters and bytes alone need {needed:,}; set it higher"
