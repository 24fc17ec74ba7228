"""The report card: its probes, their measurements with standard errors, and its table.

A text is scored as a whole, in nats, so that models can be compared even if their tokenizers split it differently.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from niels_gpt.config import Renderer
from niels_gpt.eval.generations import (
    Text,
    distinct_share,
    in_form,
    opening_prompt,
    question_prompt,
    real_words,
    repeated_share,
    write_texts,
)
from niels_gpt.eval.held_out import inference, token_losses
from niels_gpt.inference.sampling import GREEDY, SAMPLING
from niels_gpt.model.gpt import GPT
from niels_gpt.model.targets import IGNORE_INDEX
from niels_gpt.tokenizer.vocabulary import Tokenizer

# The probes: texts to choose between, questions to answer, openings to continue. Written for this project and the same
# for every run; none depends on a tokenizer.

SEED = 1  # of what a model writes
MARKS = {'"': '"', "(": ")", "[": "]"}
_PROBES = Path(__file__).with_name("probes.tsv")  # kind, text; half of the words are common, half rare
_PAIRS = Path(__file__).with_name("pairs.tsv")  # phenomenon, sentence, the same with a mistake

Choice = tuple[str, ...]  # texts that differ in one word, of which the first is right
Marked = tuple[Choice, ...]  # a text with all pairs of opening (by row) and closing marks; the diagonal is right


def probe_texts(kind: str) -> list[str]:
    """Return the texts of a kind in probes.tsv, such as "question"."""
    return [text for own, text in _rows(_PROBES) if own == kind]


def _rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]


def spelling_choices() -> list[Choice]:
    """Return one item per word: a sentence with the word, then with its three misspellings of the same length."""
    return [
        tuple(map(sentence.format, words.split()))
        for words, sentence in zip(probe_texts("words"), cycle(probe_texts("word_in")))
    ]


def minimal_pairs() -> list[tuple[str, str, str]]:
    """Return (phenomenon of English grammar, correct sentence, incorrect one), 25 for each of 12 phenomena."""
    return [(phenomenon, good, bad) for phenomenon, good, bad in _rows(_PAIRS)]


def closing_questions() -> list[Marked]:
    """Return sentences with a quoted or bracketed phrase, each with every combination of marks."""
    return [
        tuple(tuple(text.format(opened, closed) for closed in MARKS.values()) for opened in MARKS)
        for text in probe_texts("marked")
    ]


@dataclass(frozen=True)
class Measured:
    """Measured value with its standard error over the items of the probe."""

    value: float
    error: float

    @classmethod
    def mean(cls, items: Sequence[float] | np.ndarray) -> "Measured":
        """Return the mean of independent items; the error of a single one is 0."""
        values = np.asarray(items, dtype=np.float64)
        return cls(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0)


Card = dict[str, Measured]


def measure_card(
    model: GPT,
    tokenizer: Tokenizer,
    *,
    renderer: Renderer,
    known: Collection[str],
    replies: Sequence[Text],
    T: int,
    B: int,
    seed: int = SEED,
) -> Card:
    """Measure the report card of a model: values with standard errors, by name of MEASURES.

    `known` are the words of its training text. `replies` are assistant turns of held-out chats, to compare the lengths
    of the model's answers with; if empty, there is no "length". `T` is the context length, `B` the batch size for
    scoring.
    """
    asked = [(question_prompt(tokenizer, question, renderer), SAMPLING) for question in probe_texts("question")]
    openings = [opening_prompt(tokenizer, opening) for opening in probe_texts("opening")]
    drawn, greedy = ([(ids, sampling) for ids in openings] for sampling in (SAMPLING, GREEDY))
    written = iter(write_texts(model, tokenizer, [*asked, *drawn, *greedy], seed=seed))
    answers, texts, greedy_texts = (list(islice(written, len(part))) for part in (asked, drawn, greedy))
    return {
        **likelihood_card(model, tokenizer, T=T, B=B),
        **answer_card(answers, replies=replies),
        **text_card(texts, greedy_texts, known=known),
    }


def likelihood_card(model: nn.Module, tokenizer: Tokenizer, *, T: int, B: int) -> Card:
    """Measure the probes that compare the probabilities of texts: spelling, grammar and closing."""
    return _by_nats(lambda texts: text_nats(model, tokenizer, texts, T=T, B=B))


def blind_card(tokenizer: Tokenizer) -> Card:
    """Return the likelihood card of a model with uniform token probabilities: the baseline due to the tokenizer."""
    nats = math.log(tokenizer.vocab_size)
    return _by_nats(lambda texts: np.array([len(ids) * nats for ids in tokenizer.encode_batch(texts)]))


def human_card(texts: Sequence[str], replies: Sequence[Text], *, known: Collection[str]) -> Card:
    """Return the card of held-out text written by people, using only the replies that fit the context."""
    cut = [Text.cut(text) for text in texts]
    return {**answer_card([reply for reply in replies if reply.ended], replies=[]), **text_card(cut, cut, known=known)}


def answer_card(answers: Sequence[Text], *, replies: Sequence[Text]) -> Card:
    """Return the form of answers, and their length relative to `replies` if there are any."""
    card = {"form": Measured.mean([in_form(answer) for answer in answers])} if answers else {}
    if replies:
        card["length"] = _length_ratio(answers, [Text.cut(reply.text) for reply in replies])
    return card


def text_card(texts: Sequence[Text], greedy_texts: Sequence[Text], *, known: Collection[str]) -> Card:
    """Return the known words and the diversity of sampled `texts`, and the repetition in greedy ones."""
    shares = [float(np.mean([word in known for word in real_words(text.text)] or [False])) for text in texts]
    return {
        "words": Measured.mean(shares),
        "repetition": Measured.mean([repeated_share(text.text) for text in greedy_texts]),
        "distinct": _jackknifed([text.text for text in texts]),
    }


def text_nats(model: nn.Module, tokenizer: Tokenizer, texts: Sequence[str], *, T: int, B: int) -> np.ndarray:
    """Return the loss in nats of each whole text after an end-of-turn id, in parts of T tokens, `B` per batch."""
    eot = tokenizer.special_token_ids()["eot"]
    parts = [
        (i, [eot, *ids][first : first + T + 1])
        for i, ids in enumerate(list(map(int, ids)) for ids in tokenizer.encode_batch(texts))
        for first in range(0, len(ids), T)
    ]
    parts.sort(key=lambda part: len(part[1]))  # rows of similar length need little padding
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    nats = np.zeros(len(texts))
    with inference(model):
        for start in range(0, len(parts), B):
            batch = parts[start : start + B]
            rows = [torch.tensor(ids) for _, ids in batch]
            whole = pad_sequence(rows, batch_first=True, padding_value=IGNORE_INDEX)
            x, y = whole[:, :-1].clamp(min=0).to(device), whole[:, 1:].to(device)
            of = np.array([i for i, _ in batch])
            np.add.at(nats, of, token_losses(model, x, y).double().sum(dim=1).cpu().numpy())
    return nats


def share_right(choices: Sequence[Choice], nats: Mapping[str, float]) -> Measured:
    """Return the share of items whose right text is the most probable; a tie of n counts 1/n."""
    rights = []
    for choice in choices:
        found = np.array([nats[text] for text in choice])
        least = np.isclose(found, found.min(), rtol=0, atol=1e-6)
        rights.append(float(least[0]) / float(least.sum()))
    return Measured.mean(rights)


def share_grammatical(pairs: Sequence[tuple[str, str, str]], nats: Mapping[str, float]) -> Measured:
    """Return the share of pairs whose correct sentence is the more probable one; a tie counts as wrong."""
    return Measured.mean([float(nats[bad] - nats[good] > 1e-6) for _, good, bad in pairs])


def nats_saved(marked: Sequence[Marked], nats: Mapping[str, float]) -> Measured:
    """Return how many nats a text costs less if its closing mark matches the opening one.

    Matching and other pairs contain every mark equally often, so a model that ignores the opening mark scores 0,
    however common a mark is.
    """
    saved = []
    for item in marked:
        cost = np.array([[nats[text] for text in row] for row in item])
        n, right = len(cost), np.trace(cost)
        saved.append(float((cost.sum() - right) / (n * (n - 1)) - right / n))
    return Measured.mean(saved)


def _by_nats(score: Callable[[Sequence[str]], np.ndarray]) -> Card:
    spelling, closing, pairs = spelling_choices(), closing_questions(), minimal_pairs()
    texts = [text for choice in spelling for text in choice]
    texts += [text for _, *both in pairs for text in both]
    texts += [text for marked in closing for row in marked for text in row]
    nats = dict(zip(texts, score(texts), strict=True))
    return {
        "spelling": share_right(spelling, nats),
        "grammar": share_grammatical(pairs, nats),
        "closing": nats_saved(closing, nats),
    }


def _jackknifed(texts: Sequence[str]) -> Measured:
    """Return distinct_share with its jackknife error over texts, because words within a text are not independent."""
    n = len(texts)
    value = distinct_share(texts)
    without = np.array([distinct_share([*texts[:i], *texts[i + 1 :]]) for i in range(n)])
    return Measured(value, math.sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum())))


def _length_ratio(answers: Sequence[Text], replies: Sequence[Text]) -> Measured:
    """Return the mean length of answers relative to that of replies, in bytes."""
    own, theirs = (Measured.mean([len(it.text.encode("utf-8")) for it in side]) for side in (answers, replies))
    ratio = own.value / max(1.0, theirs.value)
    return Measured(ratio, math.hypot(own.error, ratio * theirs.error) / max(1.0, theirs.value))


MEASURES = {
    "words": "words of the training text, share of all in sampled text",
    "spelling": "words preferred to their misspellings",
    "grammar": "sentences preferred to the same with a mistake, of 300 pairs",
    "closing": "nats by which an opened quote or bracket makes its closing more probable",
    "form": "answers that end by themselves, at the end of a sentence",
    "length": "length of answers relative to validation answers",
    "repetition": "repeated sequences of 4 words, in greedy decoding",
    "distinct": "distinct word pairs, share of all, in sampled text",
}


def card_rows(cards: Mapping[str, Card], *, blind: Card, people: Card) -> list[list[str]]:
    """Return the header and a row per measure, for cards by model, a uniform model (`blind`) and held-out text."""
    head = ["number", "what it measures", *cards, "by chance", "held-out text"]
    rows = [
        [
            name,
            what,
            *(_shown(card.get(name), "{0.value:.3f} ± {0.error:.3f}") for card in cards.values()),
            *(_shown(card.get(name), "{0.value:.3f}") for card in (blind, people)),
        ]
        for name, what in MEASURES.items()
        if any(name in card for card in cards.values())
    ]
    return [head, *rows]


def _shown(measured: Measured | None, form: str) -> str:
    return "" if measured is None else form.format(measured)
