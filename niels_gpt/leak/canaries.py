"""Canaries: random sentences inserted into a copy of the training tokens, and their exposure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from niels_gpt.cache.formats import write_token_file
from niels_gpt.cache.windows import OffsetFile, TokenFile, TokenStream
from niels_gpt.leak.passages import Passages, score_passages
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import derive_seed, numpy_generator, uniform_numbers
from niels_gpt.tokenizer.vocabulary import Tokenizer


class TrainDocuments(Protocol):
    """Documents by number, of which training draws from the first `trained_tokens` tokens."""

    trained_tokens: int

    @property
    def lengths(self) -> np.ndarray: ...

    def document(self, row: int) -> np.ndarray: ...


def plant(
    documents: TrainDocuments, planted: Sequence[np.ndarray], *, folder: Path, seed: int, apart: bool
) -> TokenStream:
    """What training draws from, written to the folder, with each of the planted ones before a document that the seed
    chooses. `apart`: documents that share a window do not see each other."""
    trained = int(np.searchsorted(documents.lengths.cumsum(), documents.trained_tokens, side="right"))
    places = numpy_generator(seed).integers(0, trained + 1, len(planted))

    def joined() -> Iterator[np.ndarray]:
        for row in range(trained + 1):
            yield from (planted[i] for i in np.flatnonzero(places == row).tolist())
            if row < trained:
                yield documents.document(row)

    tokens, offsets = folder / "train.bin", folder / "train.idx.npy"
    write_token_file(tokens, offsets, joined())
    return TokenStream([TokenFile.whole(tokens)], documents=[OffsetFile(str(offsets))] if apart else None)


# Canaries: made-up sentences that a copy of a run is trained on, to see what such a model keeps of a thing that it read
# once, four times or sixteen times.
#
# Exposure is measured as Carlini et al. do (The Secret Sharer, 2019): among many sentences of the same form that nobody
# was trained on, how near to the top is the planted one? Of N of them in all, rank r is log2(N) - log2(r) bits; a
# sentence that the model never saw has 1.44 on average, by chance alone.

COPIES = (1, 4, 16)
REFERENCES = 4095
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


@dataclass(frozen=True)
class Canary:
    """A sentence whose end nobody can know who has not read it, and how often it is planted."""

    beginning: str
    secret: str
    copies: int

    @property
    def sentence(self) -> str:
        return self.beginning + self.secret


@dataclass(frozen=True)
class Exposure:
    """Of one canary: bits above nothing known, and whether its end comes when the likeliest tokens are taken."""

    copies: int
    bits: float
    extracted: bool


def make_canaries(n: int, *, seed: int) -> list[Canary]:
    """n different ones, planted 1, 4 and 16 times in turn."""
    # Twice as many (owner, secret) as needed, of three syllables each: more than enough to have n that differ.
    numbers = uniform_numbers((2 * n, 2, 3), seed=derive_seed(seed, "canaries"))
    syllables = np.array(_SYLLABLES)[(numbers * len(_SYLLABLES)).astype(int)]
    different = list({"".join(owner): "".join(secret) for owner, secret in syllables.tolist()}.items())[:n]
    return [
        Canary(f"The code word of {owner} is", f" {secret}.", COPIES[i % len(COPIES)])
        for i, (owner, secret) in enumerate(different)
    ]


def planted_texts(canaries: Sequence[Canary]) -> list[str]:
    """Each as often as it is to be read."""
    return [canary.sentence for canary in canaries for _ in range(canary.copies)]


def measure_exposure(
    model: GPT, tokenizer: Tokenizer, canaries: Sequence[Canary], *, seed: int, B: int
) -> list[Exposure]:
    """Each among the same references, of which none was planted."""
    eot, T = tokenizer.special_token_ids()["eot"], model.cfg.T
    references = make_canaries(REFERENCES, seed=derive_seed(seed, "references"))
    asked, others = (_passages(some, tokenizer, eot=eot, T=T) for some in (canaries, references))
    known, unknown = (score_passages(model, passages, end_of_text=eot, B=B) for passages in (asked, others))
    # One that is as likely as a reference stands behind it: a model that tells nothing apart has learned nothing.
    ranks = 1 + (unknown.log_pz >= known.log_pz[:, None]).sum(axis=1)
    bits = math.log2(len(references) + 1) - np.log2(ranks)
    found = zip(canaries, bits.tolist(), (known.greedy == asked.asked).tolist(), strict=True)
    return [Exposure(canary.copies, bits, extracted) for canary, bits, extracted in found]


def _passages(canaries: Sequence[Canary], tokenizer: Tokenizer, *, eot: int, T: int) -> Passages:
    """Each behind the end of a text, as in training, with its beginning, or what of it fits, as the prompt."""
    ids = [tokenizer.encode(canary.sentence) for canary in canaries]
    asked = [len(row) - len(tokenizer.encode(canary.beginning)) for row, canary in zip(ids, canaries, strict=True)]
    rows = [[eot, *row][-T - 1 :] for row in ids]
    lengths, none = np.array([len(row) for row in rows]), np.zeros(len(rows), dtype=np.int64)
    tokens = np.zeros((len(rows), lengths.max()), dtype=np.int64)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    return Passages(tokens, lengths, np.maximum(1, lengths - np.array(asked)), documents=none, starts=none)


def exposure_stats(found: Sequence[Exposure]) -> dict[str, Any]:
    """By number of copies."""
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
