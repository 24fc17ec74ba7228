"""One self-contained page about a run: what was trained on what, how it went, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from niels_gpt.report.scores import HEAD, score_rows

_STYLE = """:root{color-scheme:light dark}
body{font:16px/1.6 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0}
td,th{padding:.2rem .9rem .2rem 0;text-align:left;border-bottom:1px solid #8884}
td.n{text-align:right;font-variant-numeric:tabular-nums}
pre{white-space:pre-wrap;border-left:3px solid #8886;padding-left:1rem}
svg{width:100%;height:auto}code{font-size:.85em;overflow-wrap:anywhere}"""
_COLOURS = ("#3b6ea8", "#b5542c", "#4a8f5c", "#8a5aa8", "#a8863b", "#5a8f9e")


@dataclass(frozen=True)
class Training:
    """One training run: its metrics, and the rows of its two curves."""

    name: str
    summary: Mapping[str, Any]
    losses: Sequence[Mapping[str, float]]
    validations: Sequence[Mapping[str, float]]


def render_report(
    *,
    trainings: Sequence[Training],
    flops_per_token: int,
    mix: Mapping[str, Any],
    chat_mix: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, Mapping[str, float]]],
    samples: Mapping[str, Sequence[tuple[str, str]]],
    params: Mapping[str, Any],
) -> str:
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"]
    parts.append(f"<title>niels_gpt</title><style>{_STYLE}</style><h1>What was trained, and what came of it</h1>")
    parts.append("<h2>Held-out text</h2>" + _table(HEAD, score_rows(scores)))
    for training in trainings:
        parts.append(f"<h2>{escape(training.name)}</h2>{_cost(training.summary, flops_per_token)}")
        parts.append(_chart("training loss, nats a token", {"loss": _points(training.losses, "loss")}))
        names = [key for key in training.validations[0] if key not in ("step", "val_loss")]
        parts.append(_chart("validation", {name: _points(training.validations, name) for name in names}))
        parts.append(_chart("learning rate", {"lr": _points(training.losses, "lr")}))
        parts.append(_drawn(training.summary["mix"]))
    parts.append("<h2>Data</h2>" + _data(mix, chat_mix))
    for title, pairs in samples.items():
        parts.append(f"<h2>{escape(title)}</h2>")
        parts += [f"<h3>{escape(prompt)}</h3><pre dir=auto>{escape(text)}</pre>" for prompt, text in pairs]
    parts.append(
        "<h2>Parameters</h2>" + _table(("key", "value"), [(key, str(value)) for key, value in _leaves(params)])
    )
    return "\n".join(parts) + "\n</html>\n"


def _cost(summary: Mapping[str, Any], flops_per_token: int) -> str:
    flops = flops_per_token * summary["tokens"]
    return (
        f"<p>{summary['parameters']:,} parameters, {summary['steps']:,} steps, {summary['tokens']:,} tokens, about "
        f"{flops:.2g} floating-point operations; best at step {summary['best_step']:,} with "
        f"{summary['best_val_loss']:.4f}.</p>"
    )


def _drawn(mix: Mapping[str, Mapping[str, float]]) -> str:
    rows = [(name, f"{m['p']:.4f}", f"{m['drawn']:.4f}", f"{m['rows']:,}") for name, m in mix.items()]
    return _table(("source", "asked", "drawn", "rows"), rows)


def _data(mix: Mapping[str, Any], chat_mix: Mapping[str, Any]) -> str:
    rows = [
        (name, split, f"{source[split]['tokens']:,}", f"{source.get('at') or name}/{part['file']}", part["sha256"])
        for name, source in mix["sources"].items()
        for split in ("train", "val")
        for part in source[split]["parts"]
    ]
    rows += [
        (name, "chats", "", file["path"], file["sha256"])
        for name, source in chat_mix["sources"].items()
        for file in source["files"]
    ]
    return _table(("source", "split", "tokens", "file", "sha256"), rows, code_from=3)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, code_from: int = 99) -> str:
    def cell(text: str, column: int) -> str:
        shown = f"<code>{escape(text)}</code>" if column >= code_from else escape(text)
        numeric = text.replace(",", "").replace(".", "", 1).isdigit()
        return f"<td class=n>{shown}</td>" if numeric else f"<td>{shown}</td>"

    body = "".join(f"<tr>{''.join(cell(text, i) for i, text in enumerate(row))}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{body}</table>"


def _points(rows: Sequence[Mapping[str, float]], key: str) -> list[tuple[float, float]]:
    return [(row["step"], row[key]) for row in rows if key in row]


def _chart(title: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """An SVG of lines over steps, its axes named at their ends."""
    values = [y for points in lines.values() for _, y in points]
    if not values:
        return ""
    last = max(x for points in lines.values() for x, _ in points)
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    width, height, left, top = 900, 220, 70, 28
    parts = [f'<svg viewBox="0 0 {width + left + 90} {height + top + 24}" role="img" aria-label="{escape(title)}">']
    parts.append(
        f'<g fill="currentColor" font-size="13" font-family="sans-serif"><text x="{left}" y="16">{escape(title)}</text>'
    )
    for value, y in ((high, top), (low, top + height)):
        parts.append(f'<text x="{left - 8}" y="{y + 5}" text-anchor="end">{value:.4g}</text>')
    parts.append(f'<text x="{left + width}" y="{top + height + 18}" text-anchor="end">step {last:g}</text></g>')
    parts.append(f'<path d="M{left} {top}v{height}h{width}" fill="none" stroke="#8888"/>')
    for i, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        path = " ".join(f"{left + x / last * width:.1f},{top + (high - y) / span * height:.1f}" for x, y in points)
        end = path.rsplit(",", 1)[-1]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        place = f'x="{left + width + 6}" y="{float(end) + 4:.1f}"'
        parts.append(f'<text {place} font-size="12" fill="{colour}">{escape(name)}</text>')
    return "".join(parts) + "</svg>"


def _leaves(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        found += _leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return found
