"""Canaries: random sentences inserted into a copy of the training tokens, and the measurement of their exposure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPE, write_token_file
from niels_gpt.cache.windows import OffsetFile, TokenFile, TokenStream
from niels_gpt.leak.passages import Passages, score_passages
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import derive_seed, numpy_generator, uniform_numbers
from niels_gpt.tokenizer.vocabulary import Tokenizer


class TrainDocuments(Protocol):
    """Tokenized documents by row; training samples from the first `trained_tokens` tokens."""

    trained_tokens: int

    @property
    def lengths(self) -> np.ndarray: ...

    def document(self, row: int) -> np.ndarray: ...


def plant(
    documents: TrainDocuments,
    planted: Sequence[np.ndarray],
    *,
    folder: Path,
    seed: int,
    apart: bool,
    dtype: np.dtype = TOKEN_DTYPE,
) -> TokenStream:
    """Write the training tokens to `folder`, each planted document inserted at a random position, and open them.

    Positions are document boundaries, sampled with `seed`. `apart`: documents in a window do not attend to each other.
    `dtype`: type of the ids in the file.
    """
    trained = int(np.searchsorted(documents.lengths.cumsum(), documents.trained_tokens, side="right"))
    places = numpy_generator(seed).integers(0, trained + 1, len(planted))

    def joined() -> Iterator[np.ndarray]:
        for row in range(trained + 1):
            yield from (planted[i] for i in np.flatnonzero(places == row).tolist())
            if row < trained:
                yield documents.document(row)

    tokens, offsets = folder / "train.bin", folder / "train.idx.npy"
    write_token_file(tokens, offsets, joined(), dtype=dtype)
    return TokenStream([TokenFile.whole(tokens, dtype)], documents=[OffsetFile(str(offsets))] if apart else None)


# Canaries are made-up sentences that a copy of a run is trained on, to measure how much such a model memorizes of text
# that it saw 1, 4 or 16 times.
#
# Exposure (Carlini et al., The Secret Sharer, 2019): rank the canary by probability among sentences of the same form
# that no model was trained on. Rank r of N is an exposure of log2(N) - log2(r) bits; a sentence that the model never
# saw has 1.44 bits on average, by chance alone.

COPIES = (1, 4, 16)
REFERENCES = 4095
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


@dataclass(frozen=True)
class Canary:
    """Sentence with a random end (`secret`) that cannot be guessed, and the number of copies planted."""

    beginning: str
    secret: str
    copies: int

    @property
    def sentence(self) -> str:
        return self.beginning + self.secret


@dataclass(frozen=True)
class CanaryExposure:
    """Exposure of one canary in bits, and whether greedy decoding from its beginning gives its secret."""

    copies: int
    bits: float
    extracted: bool


def make_canaries(n: int, *, seed: int) -> list[Canary]:
    """Return n canaries with different owners, with 1, 4 and 16 copies in turn."""
    # Sample twice as many (owner, secret) as needed, of 3 syllables each: 70**3 names leave n that differ.
    numbers = uniform_numbers((2 * n, 2, 3), seed=derive_seed(seed, "canaries"))
    syllables = np.array(_SYLLABLES)[(numbers * len(_SYLLABLES)).astype(int)]
    different = list({"".join(owner): "".join(secret) for owner, secret in syllables.tolist()}.items())[:n]
    return [
        Canary(f"The code word of {owner} is", f" {secret}.", COPIES[i % len(COPIES)])
        for i, (owner, secret) in enumerate(different)
    ]


def planted_texts(canaries: Sequence[Canary]) -> list[str]:
    """Return each canary's sentence as often as it is to be planted."""
    return [canary.sentence for canary in canaries for _ in range(canary.copies)]


def measure_exposure(
    model: GPT, tokenizer: Tokenizer, canaries: Sequence[Canary], *, seed: int, B: int
) -> list[CanaryExposure]:
    """Return the exposure of each canary, ranked among 4095 reference sentences that were not planted.

    `B`: sentences per forward pass.
    """
    eot, T = tokenizer.special_token_ids()["eot"], model.cfg.T
    references = make_canaries(REFERENCES, seed=derive_seed(seed, "references"))
    asked, others = (_passages(some, tokenizer, eot=eot, T=T) for some in (canaries, references))
    known, unknown = (score_passages(model, passages, end_of_text=eot, B=B) for passages in (asked, others))
    # Ties rank behind the reference, so that a model that gives all sentences one probability has no exposure.
    ranks = 1 + (unknown.log_pz >= known.log_pz[:, None]).sum(axis=1)
    bits = math.log2(len(references) + 1) - np.log2(ranks)
    found = zip(canaries, bits.tolist(), (known.greedy == asked.asked).tolist(), strict=True)
    return [CanaryExposure(canary.copies, bits, extracted) for canary, bits, extracted in found]


def _passages(canaries: Sequence[Canary], tokenizer: Tokenizer, *, eot: int, T: int) -> Passages:
    """Encode canaries after an end-of-text token, as in training; the prompt is what fits of the beginning."""
    ids = [tokenizer.encode(canary.sentence) for canary in canaries]
    asked = [len(row) - len(tokenizer.encode(canary.beginning)) for row, canary in zip(ids, canaries, strict=True)]
    rows = [[eot, *row][-T - 1 :] for row in ids]
    lengths, none = np.array([len(row) for row in rows]), np.zeros(len(rows), dtype=np.int64)
    tokens = np.zeros((len(rows), lengths.max()), dtype=np.int64)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    return Passages(tokens, lengths, np.maximum(1, lengths - np.array(asked)), documents=none, starts=none)


def exposure_stats(found: Sequence[CanaryExposure]) -> dict[str, Any]:
    """Return statistics of the exposure by number of copies, as stored in the metrics."""
    return {
        str(copies): {
            "sentences": len(of),
            "mean_bits": float(np.mean([exposure.bits for exposure in of])),
            "most_bits": max(exposure.bits for exposure in of),
            "extracted": sum(exposure.extracted for exposure in of),
        }
        for copies in COPIES
        if (of := [exposure for exposure in found if exposure.copies == copies])
    }
