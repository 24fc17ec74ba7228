"""What the numbers of a report card say: what a model can do, and the temperature to serve it at."""

from __future__ import annotations

from collections.abc import Mapping

# Measured (docs/report-card.md): models whose words are invented have a spelling of 0.77 and a closing of 0.1 at most;
# the sample, fine-tuned, writes words without sense at 0.76 to 0.87 and 0.9 to 2.3.
_SPELLS, _CLOSES = (0.8, 0.9), (0.5, 2.5)  # from which on there are words (either number), sentences (both)
_LOOPS = 0.3  # share of greedy text that is repeated
_COOL, _WARM = 0.2, 0.8


def ability(card: Mapping[str, float]) -> str:
    """Return what a model can do in one or two sentences, given the values of its report card."""
    spelling, closing, form = (card.get(name, 0.0) for name in ("spelling", "closing", "form"))
    words = f"it tells {spelling:.0%} of words from misspellings (25% is chance)"
    ends = f"and {form:.0%} of its answers end like a sentence"
    if spelling >= _SPELLS[1] and closing >= _CLOSES[1]:
        return f"Your model writes sentences: {words}, {ends}."
    if spelling >= _SPELLS[0] or closing >= _CLOSES[0]:
        return f"Your model forms words, not sentences: {words}, {ends}."
    return f"Your model does not form words yet: {words}. More text or more hours would help."


def best_temperature(card: Mapping[str, float]) -> float:
    """Return the temperature for a model: cool if greedy decoding does not loop.

    A model that recites what it has memorized garbles it at the usual temperature; one that loops needs it.
    """
    return round(_COOL + (_WARM - _COOL) * min(1.0, card.get("repetition", 1.0) / _LOOPS), 1)
