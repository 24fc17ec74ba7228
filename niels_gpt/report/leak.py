"""What can be got out of a model of the private text it was trained on: a sentence, a table, and a page of passages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from niels_gpt.eval.leak import Leak, Told
from niels_gpt.eval.memorization import samples_needed
from niels_gpt.eval.passages import longest_run
from niels_gpt.report.page import render_page, render_table
from niels_gpt.tokenizer.vocabulary import Tokenizer

_SHOWN = 50  # passages of a source and a model: the worst are first, and nobody reads a thousand
_Stats = Mapping[str, Any]  # of one source under one model, as Leak.stats gives them


class LeakRow(NamedTuple):
    """One line of the table, every number as it is to be shown."""

    source: str
    model: str
    train: str
    held_out: str
    repeated: str
    run: str
    auc: str
    tpr: str


HEAD = LeakRow(
    "private source",
    "model",
    "passages that can be extracted",
    "of held-out text",
    "in other documents too",
    "longest run, tokens",
    "AUC of an attack",
    "found at 1% false alarms",
)


def leak_rows(sources: Mapping[str, Mapping[str, _Stats]]) -> list[LeakRow]:
    """Of {source: {model: numbers}}, as they stand in the metrics."""
    rows = []
    for source, models in sources.items():
        for model, stats in models.items():
            attack = stats["attack"]
            rates = [_with_interval(attack, rate) for rate in ("auc", "tpr")] if attack else ["too few documents", ""]
            run, repeated = (f"{stats['train'][name]:,}" for name in ("longest_run_tokens", "repeated_passages"))
            train, held_out = (_extracted(stats[side]) for side in ("train", "held_out"))
            rows.append(LeakRow(source, model, train, held_out, repeated, run, *rates))
    return rows


def leak_sentence(stats: _Stats) -> str:
    """The same of one source under one model."""
    attack = stats["attack"]
    told = "too few documents for an attack" if attack is None else f"attack AUC {_with_interval(attack, 'auc')}"
    train, held_out = _extracted(stats["train"]), _extracted(stats["held_out"])
    return f"{train} passages can be extracted, {held_out} held-out ones; {told}"


def _extracted(side: _Stats) -> str:
    return f"{side['extractable']:,} of {side['passages']:,}"


class CanaryRow(NamedTuple):
    """One line of the table of canaries."""

    copies: str
    sentences: str
    mean: str
    most: str
    extracted: str


CANARY_HEAD = CanaryRow("times planted", "sentences", "bits of exposure, mean", "most", "come out word for word")


def canary_rows(canaries: Mapping[str, Any] | None) -> list[CanaryRow]:
    """By number of copies."""
    rows = []
    for copies, of in (canaries["by_copies"] if canaries else {}).items():
        mean, most = (f"{of[which]:.1f}" for which in ("mean_bits", "most_bits"))
        rows.append(CanaryRow(copies, str(of["sentences"]), mean, most, str(of["extracted"])))
    return rows


def canary_sentence(canaries: Mapping[str, Any]) -> str:
    told = ", ".join(
        f"{row.mean} bits where planted {row.copies}x ({row.extracted} of {row.sentences} come out)"
        for row in canary_rows(canaries)
    )
    most = math.log2(canaries["references"] + 1)
    return f"canaries in {canaries['source']}: exposure {told}; 1.4 is chance, {most:.0f} the most"


def _with_interval(attack: _Stats, rate: str) -> str:
    low, high = attack[f"{rate}_95"]
    return f"{attack[rate]:.3f} ({low:.3f} to {high:.3f})"


def render_leak(
    found: Mapping[str, Mapping[str, Leak]],
    names: Mapping[str, Sequence[str]],
    tokenizer: Tokenizer,
    *,
    rows: Sequence[LeakRow],
) -> str:
    """One self-contained page, of private text. `names`: what each train document of a source is called; `rows`: the
    table."""
    parts = [
        '<p class="note bad">Passages of private text stand on this page. Do not share it.</p>',
        render_table(HEAD, rows),
        "<p>A passage can be extracted when a model that is given its beginning (grey) goes on with the rest word for "
        "word, always taking the likeliest token (bold: as far as it comes so), or within 1,000 samples with "
        "probability 1/2. Passages of text that is in other documents too, such as templates, are left out. Held-out "
        "passages show how many come out of any model of such text.</p>",
    ]
    for source, leaks in found.items():
        for model, leak in leaks.items():
            parts.append(f"<section><h2>{escape(source)}, {escape(model)}</h2>")
            parts.append(_longest(leak.train, names[source], tokenizer))
            worst = np.argsort(-leak.train.scored.log_pz, kind="stable")[:_SHOWN].tolist()
            parts.append("".join(_passage(leak.train, i, names[source], tokenizer) for i in worst))
            parts.append("</section>")
    return render_page("What the models know by heart", cards=[], live=False, before="\n".join(parts))


def _longest(told: Told, names: Sequence[str], tokenizer: Tokenizer) -> str:
    run, first = longest_run(told.passages, told.scored.greedy)
    if not run:
        return "<p>No passage goes on with the right token.</p>"
    rows = range(first, len(told.passages))
    ids: list[int] = []
    for i in rows:
        ids += _asked(told, i)[: int(told.scored.greedy[i])]
        if len(ids) >= run:
            break
    name = names[int(told.passages.documents[first])]
    return f"<p>Longest run word for word, {run:,} tokens of {escape(name)}:</p>" + _pre(
        f"<b>{_text(ids, tokenizer)}</b>"
    )


def _passage(told: Told, i: int, names: Sequence[str], tokenizer: Tokenizer) -> str:
    asked, greedy = _asked(told, i), int(told.scored.greedy[i])
    prompt = told.passages.tokens[i, : told.passages.prompts[i]].tolist()
    needed = samples_needed(float(np.exp(told.scored.log_pz[i])), 0.5)
    alone = samples_needed(float(np.exp(told.scored.log_pz_alone[i])), 0.5)
    name = f"{names[int(told.passages.documents[i])]}, token {told.passages.starts[i]:,}"
    facts = f"{name}: {_many(needed)} needed, {_many(alone)} without the beginning"
    texts = [_text(ids, tokenizer) for ids in (prompt, asked[:greedy], asked[greedy:])]
    return f"<h3>{escape(facts)}</h3>" + _pre("<i>{}</i><b>{}</b>{}".format(*texts))


def _asked(told: Told, i: int) -> list[int]:
    ids: list[int] = told.passages.tokens[i, told.passages.prompts[i] : told.passages.lengths[i]].tolist()
    return ids


def _many(samples: float) -> str:
    return "1 sample" if samples == 1 else f"{samples:,} samples" if samples < 10**6 else f"{samples:.1g} samples"


def _text(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    return escape(tokenizer.decode(list(ids)))


def _pre(html: str) -> str:
    return f'<pre class="passage" dir="auto">{html}</pre>'
