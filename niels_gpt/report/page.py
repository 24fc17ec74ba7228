"""HTML page about runs: one self-contained file with data, styles and charts inlined.

`niels-gpt report --live` serves it for runs in progress; the report is the same page for finished runs and results. A
content security policy (CSP) allows only the scripts and styles inlined here, by hash, and no external resources.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from niels_gpt.data.corpus.mix import Exposure
from niels_gpt.files.messages import format_duration, read_text
from niels_gpt.report.runs import Run
from niels_gpt.report.tables import BEST, MISSING

_PLOTTED = ("step", "tokens", "loss", "lr", "tokens_per_second", "utilisation", "val_loss", "validation", "sample")
_FINISHED = {"state": "finished", "share": 1.0, "time": None, "revision": 0, "since": 0}
Card = dict[str, Any]  # run as JSON for page.js


def live_card(run: Run, *, now: float, since: int = 0, shown: bool | None = None) -> Card:
    """Return the card of a logged run with its points from `since` on; `now` (Unix time) decides if it is silent."""
    state, last = "finished" if run.finished else "silent" if now > run.silent_from else "running", run.last
    points = [{name: getattr(point, name) for name in _PLOTTED} for point in run.points[since:]]
    return {
        "name": run.name,  # identifies it
        "stage": run.stage,
        "facts": _facts(run, state=state, now=now),
        "points": [_told(point) for point in points],
        "drawn": _drawn({name: (last.asked.get(name, 0.0), rows) for name, rows in last.drawn_rows.items()}),
        "state": state,
        "share": last.step / max(1, last.total_steps),  # of its steps that are done, 0 to 1
        "time": last.time,
        "revision": run.revision,
        "since": since,  # the number of points that the page has
        "shown": shown,  # plotted at first; None leaves it to the page, which plots the newest of each stage
        "title": run.title,  # the page shows the name if it is empty
    }


def _facts(run: Run, *, state: str, now: float) -> list[tuple[str, str]]:
    last, losses = run.last, {point.step: point.val_loss for point in run.points if point.val_loss is not None}
    facts = {"step": f"{last.step:,} of {last.total_steps:,}", "tokens": f"{last.tokens:,}", "loss": f"{last.loss:.4f}"}
    if losses:
        best = min(losses, key=lambda step: losses[step])
        facts["validation"] = f"{losses[max(losses)]:.4f}"
        facts["lowest validation"] = f"{losses[best]:.4f} at step {best:,}"
    facts["tokens/s"] = f"{last.tokens_per_second:,.0f}"
    if last.utilisation is not None:
        facts["MFU"] = f"{last.utilisation:.0%}"
    if state == "finished" and run.seconds:
        facts["took"] = format_duration(run.seconds)
    facts |= {what: it for what, it in (("machine", last.machine), ("commit", last.commit)) if it}
    if state == "running":
        facts["time left"] = format_duration(max(0.0, last.seconds_left - (now - last.time)))
    if state == "silent":
        facts["no log line for"] = format_duration(now - last.time)
    return list(facts.items())


def _drawn(rows: Mapping[str, tuple[float, int]]) -> list[tuple[str, ...]]:
    """Return name, probability, share and number of the rows sampled from each source, given {name: (p, rows)}."""
    total = sum(count for _, count in rows.values()) or 1
    return [(name, f"{p:.4f}", f"{count / total:.4f}", f"{count:,}") for name, (p, count) in rows.items()]


def _told(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point's known values, without the numbers that JSON cannot represent (nan, inf)."""
    known = {name: _told(value) if isinstance(value, Mapping) else value for name, value in values.items()}
    known = {name: value for name, value in known.items() if value not in (None, "", {})}
    return {name: value for name, value in known.items() if not isinstance(value, float) or math.isfinite(value)}


WEB = Path(__file__).with_name("web")
VENDOR = WEB / "vendor"
# Matches a number as a cell has it, also with an exponent, percent sign, error or the mark of the best.
_is_number = re.compile(rf"-?[\d,]+(\.\d+)?(e-?\d{{1,3}})?%?( ± [\d.]+)?({re.escape(BEST)})?").fullmatch
REPORT_TITLE = "Training report"
# Placeholders for what is not a result of the pipeline, or is computed after the report; the command fills them.
ORIGIN, SPLICE = "<!-- when and where -->", "<!-- memorized -->"


@dataclass(frozen=True)
class Training:
    """Finished training run: its metrics, and the rows of its two curves."""

    name: str
    summary: Mapping[str, Any]
    losses: Sequence[Mapping[str, float]]
    validations: Sequence[Mapping[str, float]]


def render_page(title: str, *, cards: Sequence[Card], live: bool, before: str = "", after: str = "") -> str:
    """Return a page with runs, and HTML before and after them; a live page polls its server for new points."""
    licence = json.loads(read_text(VENDOR / "vendored.json"))["uplot"]["licence_text"]
    scripts = [f"/*!\n{licence}*/\n{read_text(VENDOR / 'uPlot.iife.min.js')}", read_text(WEB / "page.js")]
    style = "\n".join(read_text(path) for path in (VENDOR / "uPlot.min.css", WEB / "colours.css", WEB / "page.css"))
    # "</script>" in a string would end the element; escaped as \u003c it cannot.
    data = json.dumps({"live": live, "runs": cards}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Template(read_text(WEB / "page.html")).substitute(
        script_hashes=" ".join(map(_hash, scripts)),
        style_hash=_hash(style),
        polled="'self'" if live else "'none'",
        title=escape(title),
        style=style,
        before=before,
        after=after,
        data=data.replace("<", "\\u003c"),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def render_report(
    *,
    cards: Sequence[Card],
    mix: Mapping[str, Any],
    chat_mix: Mapping[str, Any],
    verdict: Sequence[str],
    seen: Mapping[str, Exposure],
    notes: Sequence[str],
    samples: Mapping[str, Sequence[tuple[str, str]]],
    params: Mapping[str, Any],
    tables: Mapping[str, Sequence[Sequence[str]]],
) -> str:
    """Return the report page: a verdict and the learning curves, what the models write, scores, then all details.

    `verdict`: sentences on what the model can do. `seen`: what training read of each source. `notes`: remarks on it.
    `samples`: {title: (prompt, text) pairs}. `tables`: the head and the rows of each, by title.
    """
    after = []
    for title, pairs in samples.items():
        written = [
            f'<article><h3 dir="auto">{escape(prompt)}</h3><pre dir="auto">{escape(text)}</pre></article>'
            for prompt, text in pairs
        ]
        after.append(_section(title, f'<div class="samples">{"".join(written)}</div>'))
    after += [_section(title, render_table(head, rows)) for title, (head, *rows) in tables.items()]
    epochs = [(name, f"{it.tokens:,}", f"{it.share:.3f}", f"{it.epochs:.2f}") for name, it in seen.items()]
    said = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    after += [SPLICE, _section("Epochs", render_table(("source", "tokens", "share", "epochs"), epochs) + said)]
    after += ['<section id="rest"></section>', ORIGIN]
    values = [(key, str(value)) for key, value in leaves(params)]
    folded = {"Data, with hashes": _data(mix, chat_mix), "Parameters": render_table(("key", "value"), values)}
    after += [f"<details><summary>{title}</summary>{content}</details>" for title, content in folded.items()]
    before = f'<p class="verdict">{escape(" ".join(verdict))}</p>'
    return render_page(REPORT_TITLE, cards=cards, live=False, before=before, after="\n".join(after))


def finished_card(training: Training, *, run: str = "", flops_per_token: int = 0, shown: bool | None = None) -> Card:
    """Return the card of a finished run; `run` names it among others of its stage."""
    summary = training.summary
    facts = {name: f"{summary[name]:,}" for name in ("parameters", "steps", "tokens")}
    if flops_per_token:
        facts["floating-point operations"] = f"about {flops_per_token * summary['tokens']:.2g}"
    facts["final loss"] = f"{summary['loss']:.4f}"
    facts["lowest validation"] = f"{summary['best_val_loss']:.4f} at step {summary['best_step']:,}"
    a_step = summary["tokens"] // summary["steps"]

    def at(step: float) -> dict[str, Any]:
        return {"step": int(step), "tokens": int(step) * a_step}

    points = [{**at(row["step"]), "loss": row["loss"], "lr": row["lr"]} for row in training.losses]
    for row in training.validations:
        by_source = {name: loss for name, loss in row.items() if name not in ("step", "val_loss")}
        points.append({**at(row["step"]), "val_loss": row["val_loss"], "validation": by_source})
    return {
        "name": run or training.name,
        "stage": training.name,
        "facts": list(facts.items()),
        "points": [_told(point) for point in points],
        "drawn": _drawn({name: (share["p"], share["rows"]) for name, share in summary["mix"].items()}),
        **_FINISHED,
        "shown": shown,
        "title": "",
    }


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
    return render_table(("source", "split", "tokens", "file", "sha256"), rows, code_from=3)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def render_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, code_from: int = 99) -> str:
    """Return an HTML table, numbers right-aligned, columns from `code_from` on in a monospaced font."""

    def cell(text: str, column: int) -> str:
        shown = f"<code>{escape(text)}</code>" if column >= code_from else escape(text)
        return f'<td class="n">{shown}</td>' if _is_number(text) else f"<td>{shown}</td>"

    numeric = [
        bool(rows) and all(_is_number(row[i]) or row[i] in ("", MISSING) for row in rows) for i in range(len(head))
    ]
    names = "".join(
        f'<th class="n">{escape(name)}</th>' if n else f"<th>{escape(name)}</th>"
        for name, n in zip(head, numeric, strict=True)
    )
    body = "".join(f"<tr>{''.join(cell(text, i) for i, text in enumerate(row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def leaves(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return (dotted name, value) of all leaves of nested parameters."""
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        found += leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return found


def _hash(text: str) -> str:
    """Return the CSP source expression ('sha256-...') of an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
