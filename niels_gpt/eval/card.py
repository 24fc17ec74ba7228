"""The report card: what tells two models apart beside the loss, in a few numbers, each with its standard error.

A text is scored whole, in nats: what one tokenizer cuts into five pieces and another into twenty are then the same
text, and models with different tokenizers can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import nn

from niels_gpt.config import Renderer
from niels_gpt.eval import probes
from niels_gpt.eval.held_out import inference, token_losses
from niels_gpt.eval.probes import Choice, Marked
from niels_gpt.eval.written import (
    SAMPLING,
    Text,
    distinct_share,
    in_form,
    opening_prompt,
    question_prompt,
    repeated_share,
    write_texts,
)
from niels_gpt.inference.sampling import GREEDY
from niels_gpt.model.gpt import GPT
from niels_gpt.model.targets import IGNORE_INDEX
from niels_gpt.tokenizer.vocabulary import Tokenizer

_REPEATED_WORDS, _DISTINCT_WORDS = 4, 2


@dataclass(frozen=True)
class Measured:
    """A number, and its standard error over the items of its probe."""

    value: float
    error: float

    @classmethod
    def mean(cls, items: Sequence[float] | np.ndarray) -> Measured:
        values = np.asarray(items, dtype=np.float64)
        return cls(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0)


Card = dict[str, Measured]


def measure_card(
    model: GPT,
    tokenizer: Tokenizer,
    *,
    renderer: Renderer,
    replies: Sequence[Text],
    T: int,
    B: int,
    seed: int = probes.SEED,
) -> Card:
    """`replies`: what assistants say in held-out chats, whose lengths the model's answers are held against; without any
    there is no such number."""
    asked = [(question_prompt(tokenizer, question, renderer), SAMPLING) for question in probes.QUESTIONS]
    openings = [opening_prompt(tokenizer, opening) for opening in probes.OPENINGS]
    drawn, greedy = ([(ids, sampling) for ids in openings] for sampling in (SAMPLING, GREEDY))
    written = iter(write_texts(model, tokenizer, [*asked, *drawn, *greedy], seed=seed))
    answers, texts, likeliest = (list(islice(written, len(part))) for part in (asked, drawn, greedy))
    return {
        **likelihood_card(model, tokenizer, T=T, B=B, seed=seed),
        **answer_card(answers, replies=replies),
        **text_card(texts, likeliest),
    }


def likelihood_card(model: nn.Module, tokenizer: Tokenizer, *, T: int, B: int, seed: int = probes.SEED) -> Card:
    """What is told by how likely texts are."""
    return _by_nats(lambda texts: text_nats(model, tokenizer, texts, T=T, B=B), seed)


def blind_card(tokenizer: Tokenizer, *, seed: int = probes.SEED) -> Card:
    """The same of a model to which every token is equally likely: what the tokenizer knows by itself."""
    nats = math.log(tokenizer.vocab_size)
    return _by_nats(lambda texts: np.array([len(ids) * nats for ids in tokenizer.encode_batch(texts)]), seed)


def human_card(texts: Sequence[str], replies: Sequence[Text]) -> Card:
    """What people score by the same rules, by those of their answers that were read to the end."""
    cut = [Text.cut(text) for text in texts]
    return {**answer_card([reply for reply in replies if reply.ended], replies=[]), **text_card(cut, cut)}


def answer_card(answers: Sequence[Text], *, replies: Sequence[Text]) -> Card:
    """What answers to questions tell."""
    card = {"form": Measured.mean([in_form(answer) for answer in answers])} if answers else {}
    if replies:
        card["length"] = _length_ratio(
            [answer.text for answer in answers], [Text.cut(reply.text).text for reply in replies]
        )
    return card


def text_card(texts: Sequence[Text], likeliest: Sequence[Text]) -> Card:
    """What texts tell that go on from openings: drawn at random, and by always taking the likeliest token."""
    return {
        "repetition": Measured.mean([repeated_share(text.text, _REPEATED_WORDS) for text in likeliest]),
        "distinct": _jackknifed([text.text for text in texts]),
    }


def text_nats(model: nn.Module, tokenizer: Tokenizer, texts: Sequence[str], *, T: int, B: int) -> np.ndarray:
    """Of each text, behind the end of another. One that is longer than a context is read in parts of T tokens."""
    eot = tokenizer.special_token_ids()["eot"]
    parts = [
        (i, [eot, *ids][first : first + T + 1])
        for i, ids in enumerate(list(map(int, ids)) for ids in tokenizer.encode_batch(texts))
        for first in range(0, len(ids), T)
    ]
    parts.sort(key=lambda part: len(part[1]))  # so that rows of a batch are about as long, and little is padding
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    nats = np.zeros(len(texts))
    with inference(model):
        for start in range(0, len(parts), B):
            batch = parts[start : start + B]
            longest = max(len(ids) for _, ids in batch)
            whole = torch.full((len(batch), longest), IGNORE_INDEX)
            for row, (_, ids) in zip(whole, batch, strict=True):
                row[: len(ids)] = torch.tensor(ids)
            x, y = whole[:, :-1].clamp(min=0).to(device), whole[:, 1:].to(device)
            of = np.array([i for i, _ in batch])
            np.add.at(nats, of, token_losses(model, x, y).double().sum(dim=1).cpu().numpy())
    return nats


def share_right(choices: Sequence[Choice], nats: Mapping[str, float]) -> Measured:
    """How often the right text is the likeliest; where several are, each is taken equally often."""
    rights = []
    for choice in choices:
        found = np.array([nats[text] for text in choice.texts])
        least = np.isclose(found, found.min(), rtol=0, atol=1e-6)
        rights.append(float(least[0]) / float(least.sum()))
    return Measured.mean(rights)


def nats_saved(marked: Sequence[Marked], nats: Mapping[str, float]) -> Measured:
    """How much likelier what closes is where its own mark was opened. Each mark is as often the right one as a wrong
    one: whoever does not look at what was opened saves nothing, however common a mark is."""
    saved = []
    for item in marked:
        cost = np.array([[nats[text] for text in row] for row in item.texts])
        n, right = len(cost), np.trace(cost)
        saved.append(float((cost.sum() - right) / (n * (n - 1)) - right / n))
    return Measured.mean(saved)


def _by_nats(score: Callable[[Sequence[str]], np.ndarray], seed: int) -> Card:
    spelling, closing = probes.spelling(seed), probes.closing(seed)
    texts = [text for choice in spelling for text in choice.texts]
    texts += [text for marked in closing for row in marked.texts for text in row]
    nats = dict(zip(texts, score(texts), strict=True))
    return {"spelling": share_right(spelling, nats), "closing": nats_saved(closing, nats)}


def _jackknifed(texts: Sequence[str]) -> Measured:
    """Over texts: their words are not independent of one another."""
    n = len(texts)
    value = distinct_share(texts, _DISTINCT_WORDS)
    without = np.array([distinct_share([*texts[:i], *texts[i + 1 :]], _DISTINCT_WORDS) for i in range(n)])
    return Measured(value, math.sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum())))


def _length_ratio(answers: Sequence[str], replies: Sequence[str]) -> Measured:
    """How many times as long answers are as replies, in bytes."""
    own, theirs = (Measured.mean([len(text.encode("utf-8")) for text in side]) for side in (answers, replies))
    ratio = own.value / max(1.0, theirs.value)
    return Measured(ratio, math.hypot(own.error, ratio * theirs.error) / max(1.0, theirs.value))
