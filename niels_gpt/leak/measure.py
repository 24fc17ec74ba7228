"""Leak measurement: extractable sentences and passages, membership inference, and the exposure of canaries."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.formats import write_token_file
from niels_gpt.cache.windows import TokenFile, TokenStore, TokenStream
from niels_gpt.leak.extraction import Extraction, Questions, extract
from niels_gpt.leak.passages import (
    Documents,
    Passages,
    Scored,
    cut_passages,
    drop_repeated,
    score_passages,
)
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import derive_seed, numpy_generator, uniform_numbers
from niels_gpt.tokenizer.vocabulary import Tokenizer

# Membership inference: how well an attacker with the model's scores can tell training texts from other texts.
#
# Scores within a document are correlated, so confidence intervals come from a bootstrap over documents: each resample
# weights every document by how often it was sampled.

_RESAMPLES = 500
_FALSE_ALARMS = 0.01


Side = tuple[np.ndarray, np.ndarray]  # scores of passages, and the document of each


def attack(members: Side, others: Side, *, seed: int) -> dict[str, Any] | None:
    """Return how well `members` are told from `others` by score; None if a side has fewer than 2 documents.

    `auc` (0.5 is chance) and `tpr`, the true-positive rate at 1% FPR; `auc_95` and `tpr_95` are 95% intervals.
    """
    counts = [len(np.unique(documents)) for _, documents in (members, others)]
    if min(counts) < 2:
        return None
    # Scores of both sides are ranked once, so that each resample takes a weighted sum only.
    _, rank = np.unique(np.concatenate((members[0], others[0])), return_inverse=True)
    ranks, levels = np.split(rank, [len(members[0])]), int(rank.max()) + 1
    of = [np.unique(documents, return_inverse=True)[1] for _, documents in (members, others)]

    def rates(weights: Sequence[np.ndarray]) -> tuple[float, float]:
        """Return (AUC, TPR at 1% FPR) with a weight per document of each side; ties count half in the AUC."""
        member, other = (np.bincount(ranks[i], weights=weights[i][of[i]], minlength=levels) for i in range(2))
        member, other = member / member.sum(), other / other.sum()
        auc = min(1.0, float((member * (other.cumsum() - other / 2)).sum()))  # rounding may exceed 1
        above = 1 - other.cumsum()  # false-positive rate if all scores above a level count as members
        threshold = int(np.argmax(above <= _FALSE_ALARMS + 1e-12))
        return auc, min(1.0, float(member[threshold + 1 :].sum()))

    rng = numpy_generator(seed)
    drawn = [
        rates([rng.multinomial(n, np.full(n, 1 / n)).astype(np.float64) for n in counts]) for _ in range(_RESAMPLES)
    ]
    auc, tpr = rates([np.ones(n) for n in counts])
    auc_95, tpr_95 = np.quantile(np.array(drawn), (0.025, 0.975), axis=0).T.tolist()
    return {"auc": auc, "auc_95": auc_95, "tpr": tpr, "tpr_95": tpr_95}


# Extraction from training text, with held-out text of the same source as a control.
#
# The prompt of a sentence is its first words (extraction.py), of a passage half of its tokens. A passage whose text
# occurs in other documents, too, is skipped: it tells nothing about one document, and the sentences report it. Some
# held-out passages are completed by chance; it is a leak only if training passages are completed more often.


def distinct_passages(train: Documents, held_out: Documents, **windows: Any) -> tuple[Passages, Passages]:
    """Return the passages of both sides whose text is in no other training document.

    `windows` are arguments of `cut_passages`.
    """
    return (
        drop_repeated(cut_passages(train, **windows), train, own=True),
        drop_repeated(cut_passages(held_out, **windows), train, own=False),
    )


@dataclass(frozen=True)
class Leak:
    """Leak measurement of one source and one model."""

    train: Scored
    held_out: Scored
    attack: dict[str, Any] | None
    extraction: Extraction

    @property
    def beyond_chance(self) -> int:
        """Number of extractable training passages; 0 if the share of extractable held-out ones is as high."""
        found, by_chance = (side.extractable.sum() / max(1, len(side.passages)) for side in (self.train, self.held_out))
        return int(self.train.extractable.sum()) if found > by_chance else 0

    def stats(self) -> dict[str, Any]:
        """Return the numbers without any text, as stored in the metrics."""
        return {
            "extractable_sentences": len(self.extraction.findings),
            "extractable_passages": self.beyond_chance,
            "sentences": self.extraction.stats,
            "train": self.train.stats(),
            "held_out": self.held_out.stats(),
            "attack": self.attack,
        }


def measure_leak(
    model: GPT, passages: tuple[Passages, Passages], questions: Questions, *, seed: int, **how: Any
) -> Leak:
    """Measure the passages and the sentences of one source; `how` are arguments of `score_passages`."""
    train, held_out = (score_passages(model, side, **how) for side in passages)
    # The score for membership is the mean log probability, in nats/token.
    sides = ((side.log_pz / side.passages.asked, side.passages.documents) for side in (train, held_out))
    extraction = extract(model, questions, seed=seed, **how)
    return Leak(train, held_out, attack(*sides, seed=seed), extraction)


def plant(
    documents: TokenStore, planted: Sequence[np.ndarray], *, folder: Path, seed: int, apart: bool, dtype: np.dtype
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
    return TokenStream([TokenFile.whole(tokens, dtype)], documents=[offsets] if apart else None)


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
) -> tuple[np.ndarray, np.ndarray]:
    """Return (exposure in bits, whether greedy decoding from its beginning gives its secret) of each canary.

    Each is ranked among 4095 sentences that were not planted. `B`: sentences per pass.
    """
    eot, T = tokenizer.special_token_ids()["eot"], model.cfg.T
    references = make_canaries(REFERENCES, seed=derive_seed(seed, "references"))
    asked, others = (_passages(some, tokenizer, eot=eot, T=T) for some in (canaries, references))
    known, unknown = (score_passages(model, passages, end_of_text=eot, B=B) for passages in (asked, others))
    # Ties rank behind the reference, so that a model that gives all sentences one probability has no exposure.
    ranks = 1 + (unknown.log_pz >= known.log_pz[:, None]).sum(axis=1)
    return math.log2(len(references) + 1) - np.log2(ranks), known.greedy == asked.asked


def _passages(canaries: Sequence[Canary], tokenizer: Tokenizer, *, eot: int, T: int) -> Passages:
    """Encode canaries after an end-of-text token, as in training; the prompt is what fits of the beginning."""
    ids = [[eot, *tokenizer.encode(canary.sentence)] for canary in canaries]
    begun = [1 + len(tokenizer.encode(canary.beginning)) for canary in canaries]
    whole, none = np.array([len(row) for row in ids]), np.zeros(len(ids), dtype=np.int64)
    lengths = np.minimum(whole, T + 1)
    tokens = np.zeros((len(ids), lengths.max()), dtype=np.int64)
    for kept, row in zip(tokens, ids, strict=True):
        kept[: len(row)] = row[-T - 1 :]
    return Passages(tokens, lengths, np.maximum(1, lengths - whole + begun), documents=none, starts=none)


def exposure_stats(canaries: Sequence[Canary], bits: np.ndarray, extracted: np.ndarray) -> dict[str, Any]:
    """Return statistics of the exposure by number of copies, as stored in the metrics."""
    copies = np.array([canary.copies for canary in canaries])
    return {
        str(n): {
            "sentences": int(own.sum()),
            "mean_bits": float(bits[own].mean()),
            "most_bits": float(bits[own].max()),
            "extracted": int(extracted[own].sum()),
        }
        for n in COPIES
        if (own := copies == n).any()
    }
