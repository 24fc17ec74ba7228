"""Leak measurement: extractable sentences and passages, membership inference, and the exposure of canaries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPE, write_token_file
from niels_gpt.cache.windows import OffsetFile, TokenFile, TokenStream
from niels_gpt.leak.extraction import Extraction, Questions, extract
from niels_gpt.leak.memorized import TRIES
from niels_gpt.leak.passages import (
    Documents,
    Passages,
    Scored,
    cut_passages,
    longest_run,
    needed_log_pz,
    repeated,
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


@dataclass(frozen=True)
class Attack:
    """Membership-inference result with 95% intervals: AUC (0.5 is chance), and true-positive rate at 1% FPR."""

    auc: float
    auc_95: tuple[float, float]
    tpr: float
    tpr_95: tuple[float, float]


@dataclass(frozen=True)
class Side:
    """Scores of passages, and the document of each."""

    scores: np.ndarray
    documents: np.ndarray


def attack(members: Side, others: Side, *, seed: int) -> Attack | None:
    """Return AUC and TPR of telling `members` from `others` by score; None if a side has fewer than 2 documents."""
    counts = [len(np.unique(side.documents)) for side in (members, others)]
    if min(counts) < 2:
        return None
    # Scores of both sides are ranked once, so that each resample takes a weighted sum only.
    _, rank = np.unique(np.concatenate((members.scores, others.scores)), return_inverse=True)
    ranks, levels = np.split(rank, [len(members.scores)]), int(rank.max()) + 1
    of = [np.unique(side.documents, return_inverse=True)[1] for side in (members, others)]

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
    (auc_low, auc_high), (tpr_low, tpr_high) = np.quantile(np.array(drawn), (0.025, 0.975), axis=0).T.tolist()
    return Attack(auc, (auc_low, auc_high), tpr, (tpr_low, tpr_high))


# Extraction from training text, with held-out text of the same source as a control.
#
# The prompt of a sentence is its first words (extraction.py), of a passage half of its tokens. A passage whose text
# occurs in other documents, too, is skipped: it tells nothing about one document, and the sentences report it. Some
# held-out passages are completed by chance; it is a leak only if training passages are completed more often.


@dataclass(frozen=True)
class Subject:
    """Training and held-out passages of a source whose text is in no other training document.

    `repeated`: by side, the number of passages skipped because their text is in one.
    """

    train: Passages
    held_out: Passages
    repeated: dict[str, int]

    @classmethod
    def of(cls, train: Documents, held_out: Documents, **windows: Any) -> Subject:
        """Cut both sides into passages and drop repeated ones; `windows` are arguments of `cut_passages`."""
        cut = {"train": cut_passages(train, **windows), "held_out": cut_passages(held_out, **windows)}
        known = {name: repeated(passages, train, own=name == "train") for name, passages in cut.items()}
        return cls(
            **{name: passages.take(~known[name]) for name, passages in cut.items()},
            repeated={name: int(mask.sum()) for name, mask in known.items()},
        )

    @property
    def tokens(self) -> int:
        """Number of tokens that a model reads to score all passages once."""
        return self.train.tokens.size + self.held_out.tokens.size


@dataclass(frozen=True)
class Told:
    """Passages, and a model's scores of them."""

    passages: Passages
    scored: Scored

    @property
    def whole(self) -> np.ndarray:
        """Mask of the passages that greedy decoding completes."""
        return self.scored.greedy == self.passages.asked

    @property
    def extractable(self) -> np.ndarray:
        """Mask of the extractable passages: completed by greedy decoding, or in 1,000 samples with probability 1/2."""
        return self.whole | (self.scored.log_pz >= needed_log_pz(TRIES[-1]))

    @property
    def share(self) -> float:
        """Share of the passages that are extractable, 0 to 1."""
        return float(self.extractable.mean()) if len(self.passages) else 0.0

    def side(self) -> Side:
        """Return the scores for membership inference: mean log probability, in nats/token."""
        return Side(self.scored.log_pz / self.passages.asked, self.passages.documents)

    def stats(self) -> dict[str, Any]:
        """Return the numbers without any text."""
        run, _ = longest_run(self.passages, self.scored.greedy)
        stats: dict[str, Any] = {
            "documents": len(np.unique(self.passages.documents)),
            "passages": len(self.passages),
            "extractable": int(self.extractable.sum()),
            "greedy": int(self.whole.sum()),
            "longest_run_tokens": run,
            "median_log_pz": float(np.median(self.scored.log_pz)) if len(self.passages) else None,
        }
        for name, logs in {"pz": self.scored.log_pz, "pz_alone": self.scored.log_pz_alone}.items():
            # Pairs in a list, because tables of experiments get a column for every number with a name.
            stats[f"{name}_found_in_n_samples"] = [(n, int((logs >= needed_log_pz(n)).sum())) for n in TRIES]
        return stats


@dataclass(frozen=True)
class Leak:
    """Leak measurement of one source and one model."""

    train: Told
    held_out: Told
    repeated: dict[str, int]
    attack: Attack | None
    extraction: Extraction

    @property
    def beyond_chance(self) -> int:
        """Number of extractable training passages; 0 if the share of extractable held-out ones is as high."""
        return int(self.train.extractable.sum()) if self.train.share > self.held_out.share else 0

    def stats(self) -> dict[str, Any]:
        """Return the numbers without any text, as stored in the metrics."""
        sides = {"train": self.train, "held_out": self.held_out}
        return {
            "extractable_sentences": len(self.extraction.findings),
            "extractable_passages": self.beyond_chance,
            "sentences": self.extraction.stats(),
            **{name: {**told.stats(), "repeated_passages": self.repeated[name]} for name, told in sides.items()},
            "attack": None if self.attack is None else asdict(self.attack),
        }


def tell(model: GPT, passages: Passages, *, end_of_text: int, B: int) -> Told:
    """Score passages with a model, `B` of them per forward pass."""
    return Told(passages, score_passages(model, passages, end_of_text=end_of_text, B=B))


def measure_leak(model: GPT, subject: Subject, questions: Questions, *, seed: int, **how: Any) -> Leak:
    """Measure the passages and the sentences of one source; `how` are arguments of `tell`."""
    train, held_out = (tell(model, passages, **how) for passages in (subject.train, subject.held_out))
    membership = attack(train.side(), held_out.side(), seed=seed)
    return Leak(train, held_out, subject.repeated, membership, extract(model, questions, seed=seed, **how))


class TrainDocuments(Documents, Protocol):
    """Tokenized documents by row; training samples from the first `trained_tokens` tokens."""

    trained_tokens: int


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
    """Return the exposure of each canary among 4095 sentences that were not planted; `B`: sentences per pass."""
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
