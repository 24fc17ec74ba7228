"""The table of held-out scores, wherever it is shown: in a terminal, on the report page, on a model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ScoreRow(NamedTuple):
    """One line, every number as it is to be shown."""

    model: str
    held_out: str
    nats: str
    bits: str
    tokens: str


HEAD = ScoreRow("model", "held out", "nats a token", "bits a byte", "tokens")


def score_rows(scores: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[ScoreRow]:
    """Of {model: {held-out stream: {nats, bits_per_byte, tokens}}}."""
    return [
        ScoreRow(model, name, f"{score['nats']:.4f}", f"{score['bits_per_byte']:.4f}", f"{score['tokens']:,}")
        for model, table in scores.items()
        for name, score in table.items()
    ]
