"""Ability of a model by the numbers of its report card, and the temperature to serve it at."""

from collections.abc import Mapping

from niels_gpt.model.size import Ability

# Bounds between untrained models, runs that write words, and SmolLM2-135M: docs/report-card.md has their cards.
_WORDS, _SPELLS, _SPELLS_ALL, _CLOSES, _REPEATS = 0.72, 0.82, 0.97, 7.0, 0.6
_LOOPS = 0.3  # share of greedy text that is repeated
_COOL, _WARM = 0.2, 0.8


def measured_ability(card: Mapping[str, float]) -> Ability:
    """Return what a model writes, given the values of its report card."""
    numbers = ("words", "spelling", "closing", "repetition")
    words, spelling, closing, repetition = (card.get(name, 0.0) for name in numbers)
    # Notes may have few of the English words of `spelling`, and a base has many more words than the notes.
    if words < _WORDS and spelling < _SPELLS:
        return Ability.NO_WORDS
    sentences = spelling >= _SPELLS_ALL and closing >= _CLOSES and repetition <= _REPEATS
    return Ability.SENTENCES if sentences else Ability.WORDS


def ability(card: Mapping[str, float]) -> str:
    """Return what a model can do in one or two sentences, given the values of its report card."""
    words = f"{card.get('words', 0.0):.0%} of what it writes are words of its training text"
    ends = f"and {card.get('form', 0.0):.0%} of its answers end like a sentence"
    match measured_ability(card):
        case Ability.NO_WORDS:
            return f"Your model does not form words yet: {words}. More text or a pretrained model would help."
        case Ability.WORDS:
            return f"Your model forms words, not sentences: {words}, {ends}."
        case _:
            return f"Your model writes sentences: {words}, {ends}."


def best_temperature(card: Mapping[str, float]) -> float:
    """Return the temperature for a model: cool if greedy decoding does not loop.

    A model that recites what it has memorized garbles it at the usual temperature; one that loops needs it.
    """
    return round(_COOL + (_WARM - _COOL) * min(1.0, card.get("repetition", 1.0) / _LOOPS), 1)
