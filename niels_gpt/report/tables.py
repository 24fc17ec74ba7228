"""Tables for a terminal, tab-separated files, samples as Markdown, and the metrics and curves of a finished run."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from niels_gpt.files.checks import Damaged
from niels_gpt.lr_schedule import scheduled_lr
from niels_gpt.report.history import History

BEST, MISSING = " *", "-"  # suffix of the best of several values; placeholder of a missing value
_MOST = 24  # most characters of a cell


def lay_out(table: Sequence[Sequence[str]], *, width: int) -> list[str]:
    """Format a table with names of rows and columns in lines of `width` characters; transposed if that is shorter."""
    given = _blocks(table, width)
    return given if "" not in given else min((given, _blocks(list(zip(*table, strict=True)), width)), key=len)


def _blocks(table: Sequence[Sequence[str]], width: int) -> list[str]:
    """Format blocks of as many columns as fit side by side, one below the other, each with the row names."""
    (_, *rows), *columns = zip(*table, strict=True)
    names = ["", "", *map(_cut, rows)]
    first = max(map(len, names))
    blocks: list[list[list[str]]] = [[]]
    for name, *cells in columns:
        above, _, below = name.rpartition(" ")  # names take two lines
        column = [_cut(above), _cut(below), *_hung(cells)]
        size = 2 + max(map(len, column))  # two spaces between columns
        if blocks[-1] and first + sum(len(other[0]) for other in blocks[-1]) + size > width:
            blocks.append([])
        blocks[-1].append([cell.rjust(size) for cell in column])
    lines: list[str] = []
    for block in blocks:
        shown = [(name.ljust(first) + "".join(cells)).rstrip() for name, *cells in zip(names, *block, strict=True)]
        lines += ["", *shown[0 if shown[0] else 1 :]]  # no empty line above the head
    return lines[1:]


def _hung(cells: Sequence[str]) -> list[str]:
    """Truncate and pad a column's cells so that digits align: the mark of the best hangs over at the right."""
    cut = [cell if len(cell) <= _MOST else f"{cell[: _MOST - 1]}…" for cell in cells]
    marked = any(cell.endswith(BEST) for cell in cut)
    return [cell + " " * len(BEST) if marked and not cell.endswith(BEST) else cell for cell in cut]


def _cut(text: str) -> str:
    """Truncate a long text at its beginning: names of parameters differ at the end."""
    return text if len(text) <= _MOST else f"…{text[1 - _MOST :]}"


def write_tsv(path: Path, rows: Sequence[Mapping[str, float | str]]) -> None:
    """Write rows as tab-separated values, with the columns of the first row."""
    columns = list(rows[0])
    # Integers, such as steps, keep all digits.
    cells = [[f"{row[c]:.6g}" if isinstance(row[c], float) else str(row[c]) for c in columns] for row in rows]
    lines = ["\t".join(line) for line in (columns, *cells)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_tsv(path: Path) -> list[dict[str, float]]:
    """Read a curve of numeric columns; raise Damaged if it is not one or has no point."""
    return parse_tsv(path.read_text(encoding="utf-8", errors="replace"), path=path)


def parse_tsv(text: str, *, path: str | Path, required: Collection[str] = ()) -> list[dict[str, float]]:
    """Parse the text of a curve like `read_tsv`, which must have the `required` columns; `path` is for messages."""
    head, *lines = text.splitlines() or [""]
    try:
        rows = [dict(zip(head.split("\t"), map(float, line.split("\t")), strict=True)) for line in lines]
    except ValueError as error:
        raise Damaged(path, f"is no curve ({error})") from error
    if not rows:
        raise Damaged(path, "holds no point")
    if missing := set(required) - set(rows[0]):
        raise Damaged(path, f"lacks {', '.join(missing)}")
    return rows


def format_samples(sections: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Return Markdown with the (prompt, text) pairs under each title; a fence is longer than any in its text."""
    parts = []
    for section, samples in sections.items():
        parts.append(f"# {section}\n")
        for prompt, text in samples:
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            title = next(iter(prompt.strip().splitlines()), repr(prompt))  # a prompt may be blank
            parts.append(f"## {title}\n\n{fence}text\n{text}\n{fence}\n")
    return "\n".join(parts)


HEAD = ("model", "validation set", "nats/token", "bits per byte", "tokens")


def score_rows(scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[tuple[str, ...]]:
    """Return rows of {model: {stream: scores}}; a stream with quotes gets a second row, without the quotes."""
    rows = []
    for model, table in scores.items():
        for name, score in table.items():
            rows.append(_row(model, name, score, score.get("tokens")))
            if quoted := score.get("quoted_tokens"):
                rows.append(_row(model, f"{name} without quotes", score, score["tokens"] - quoted, "_without_quotes"))
    return rows


def _row(model: str, name: str, score: Mapping[str, Any], tokens: int | None, which: str = "") -> tuple[str, ...]:
    # A compressor has bits per byte alone.
    nats, bits = (
        MISSING if (mean := score.get(f"{key}{which}")) is None else f"{mean:.4f}" for key in ("nats", "bits_per_byte")
    )
    return model, name, nats, bits, MISSING if tokens is None else f"{tokens:,}"


# Metrics and learning curves of a finished run, computed from its history.

_CURVE_POINTS = 200


def summarise(run: History) -> dict[str, Any]:
    """Return the metrics of a run, losses in nats/token; in `mix`, `p` is asked for and `drawn` the actual share."""
    rows, steps = sum(run.drawn_rows.values()), len(run.losses)
    return {
        "steps": steps,
        "tokens": steps * run.cfg.B * run.T,
        "parameters": run.parameters,
        "loss": _mean(run.losses[-max(1, steps // _CURVE_POINTS) :]),
        "val_loss": run.validations[-1]["val_loss"],
        "best_val_loss": run.best_val_loss,
        "best_step": run.best_step,
        "mix": {
            name: {"p": p, "rows": run.drawn_rows[name], "drawn": run.drawn_rows[name] / rows}
            for name, p in run.cfg.p_train.items()
        },
    }


def loss_curve(run: History) -> list[dict[str, float]]:
    """Return 200 to 399 points (or one per step): the mean loss since the point before, and the learning rate."""
    cfg, steps = run.cfg, len(run.losses)
    every = max(1, cfg.total_steps // _CURVE_POINTS)
    points = []
    for first in range(0, steps, every):
        last = min(first + every, steps)
        points.append({"step": last, "loss": _mean(run.losses[first:last]), "lr": scheduled_lr(cfg, last - 1)})
    return points


def validations_by_source(run: History) -> list[dict[str, float | str]]:
    """Return one row per validation and source."""
    return [
        {"step": row["step"], "source": name, "loss": loss}
        for row in run.validations
        for name, loss in row.items()
        if name not in ("step", "val_loss")
    ]


def mix_shares(run: History) -> list[dict[str, float | str]]:
    """Return the configured and the actual share of each source, one row each."""
    rows = sum(run.drawn_rows.values())
    shares = {"asked": run.cfg.p_train, "drawn": {name: count / rows for name, count in run.drawn_rows.items()}}
    return [{"mix": what, "source": name, "share": share} for what, t in shares.items() for name, share in t.items()]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
