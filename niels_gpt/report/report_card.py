"""The report card as a table: what each number measures, of each model with its standard error, and what to hold it
against."""

from __future__ import annotations

from collections.abc import Mapping

from niels_gpt.eval.card import Card, Measured

MEASURES = {
    "spelling": "words told from misspelt ones",
    "closing": "nats that a quote or bracket is likelier where it was opened",
    "form": "answers that end by themselves, at the end of a sentence",
    "length": "answers, times as long as held-out ones",
    "repetition": "four words in a row that stood there before, taking the likeliest token",
    "distinct": "different pairs of words of all, drawing at random",
}


def card_rows(cards: Mapping[str, Card], *, blind: Card, people: Card) -> list[list[str]]:
    """A head and a row a number. `blind`: of a model that knows nothing; `people`: of held-out text."""
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
