"""The table of held-out scores, wherever it is shown: in a terminal, on the report page, on a model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from niels_gpt.report.grid import MISSING


class ScoreRow(NamedTuple):
    """One line, every number as it is to be shown."""

    model: str
    held_out: str
    nats: str
    bits: str
    tokens: str


HEAD = ScoreRow("model", "held out", "nats a token", "bits a byte", "tokens")


def score_rows(scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[ScoreRow]:
    """Return the rows of {model: {held-out stream: {nats, bits_per_byte, tokens, ...}}}.

    A stream with quotes of training text has a second row, of its other tokens.
    """
    rows = []
    for model, table in scores.items():
        for name, score in table.items():
            rows.append(_row(model, name, score, score["tokens"]))
            if quoted := score.get("quoted_tokens"):
                rows.append(_row(model, f"{name} without quotes", score, score["tokens"] - quoted, "_without_quotes"))
    return rows


def _row(model: str, name: str, score: Mapping[str, Any], tokens: int, which: str = "") -> ScoreRow:
    nats, bits = (
        MISSING if (mean := score[f"{key}{which}"]) is None else f"{mean:.4f}" for key in ("nats", "bits_per_byte")
    )
    return ScoreRow(model, name, nats, bits, f"{tokens:,}")
