"""What the numbers of a report card say: what a model can do, and the temperature to serve it at."""

from __future__ import annotations

from collections.abc import Mapping

_SPELLS, _ENDS, _LOOPS = 0.6, 0.5, 0.3  # shares on the card: words spelled, answers well formed, greedy text repeated
_COOL, _WARM = 0.2, 0.8


def ability(card: Mapping[str, float]) -> str:
    """Return one sentence on what a model can do, given the values of its report card."""
    spelling, form, loops = (card.get(name, 0.0) for name in ("spelling", "form", "repetition"))
    words = f"it tells {spelling:.0%} of words from misspellings (25% is chance)"
    ends = f"and {form:.0%} of its answers are complete sentences"
    if spelling < _SPELLS:
        return f"Your model does not form words yet: {words}. More text or more hours would help."
    if form < _ENDS or loops > _LOOPS:
        return f"Your model forms words, not sentences: {words}, {ends}."
    return f"Your model writes sentences: {words}, {ends}."


def best_temperature(card: Mapping[str, float]) -> float:
    """Return the temperature for a model: cool if greedy decoding does not loop.

    A model that recites what it has memorized garbles it at the usual temperature; one that loops needs it.
    """
    return round(_COOL + (_WARM - _COOL) * min(1.0, card.get("repetition", 1.0) / _LOOPS), 1)
