"""Report of the leak measurement: a verdict, a table, and a page with the extracted private text."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.files.messages import plural, read_text
from niels_gpt.leak.extraction import Recital
from niels_gpt.leak.measure import Leak
from niels_gpt.leak.passages import Scored
from niels_gpt.report.page import render_page, render_table

_RUNS_SHOWN = 10
_SHOWN = 50  # passages per source and model, the most extractable first
_Stats = Mapping[str, Any]  # of one source and one model, as returned by Leak.stats


HEAD = (
    "private source",
    "model",
    "extractable sentences",
    "sentences tested",
    "of held-out sentences",
    "extractable passages",
    "of held-out passages",
    "skipped: in other documents too",
    "longest run, tokens",
    "membership AUC",
    "TPR at 1% FPR",
)


def leak_rows(sources: Mapping[str, Mapping[str, _Stats]]) -> list[tuple[str, ...]]:
    """Return the table's rows, cells as in HEAD, for {source: {model: stats}}, as stored in the metrics."""
    rows = []
    for source, models in sources.items():
        for model, stats in models.items():
            attack = stats["attack"]
            rates = [_with_interval(attack, rate) for rate in ("auc", "tpr")] if attack else ["too few documents", ""]
            run, repeated = (f"{stats['train'][name]:,}" for name in ("longest_run_tokens", "repeated_passages"))
            train, held_out = (_extracted(stats[side]) for side in ("train", "held_out"))
            sentences = stats["sentences"]
            held = "{:,} of {:,}".format(*sentences["held_out_reported"])
            recited = f"{sentences['extractable']:,}"
            rows.append((source, model, recited, asked(sentences), held, train, held_out, repeated, run, *rates))
    return rows


def extractable(sources: Mapping[str, Mapping[str, _Stats]], *, without: str) -> int:
    """Return how many private sentences and passages the models recite, those of the model `without` left out."""
    leaks = [leak for models in sources.values() for model, leak in models.items() if model != without]
    return sum(leak["extractable_sentences"] + leak["extractable_passages"] for leak in leaks)


def leak_sentence(stats: _Stats) -> str:
    """Return a one-line summary of one source and one model."""
    attack, sentences = stats["attack"], stats["sentences"]
    membership = (
        "too few documents for an attack" if attack is None else f"membership AUC {_with_interval(attack, 'auc')}"
    )
    train, held_out = _extracted(stats["train"]), _extracted(stats["held_out"])
    recited = f"{plural(sentences['extractable'], 'sentence')} can be extracted ({asked(sentences)} tested)"
    return f"{recited}; {train} passages, {held_out} held-out passages; {membership}"


def asked(sentences: _Stats) -> str:
    """Format how many of all sentences were asked for."""
    asked, total = sentences["asked"]
    if asked == total:
        return f"all {total:,}"
    whole, documents = sentences["documents_asked"]
    return f"{asked:,} of {total:,}" + (f", all of {whole:,} of {plural(documents, 'document')}" if whole else "")


_KNOWN_MEMBER = 0.6  # lower end of the AUC's 95% interval from which the verdict mentions membership


def verdict(sources: Mapping[str, Mapping[str, _Stats]], model: str) -> str:
    """Return one sentence about one model for the owner of the private text."""
    of = {source: models[model] for source, models in sources.items() if model in models}
    if not of:
        return "No private text was used."
    sentences, passages = (
        sum(stats[f"extractable_{what}"] for stats in of.values()) for what in ("sentences", "passages")
    )
    if sentences or passages:
        counts = [plural(n, f"private {what}") for n, what in ((sentences, "sentence"), (passages, "passage")) if n]
        return f"This model can recite {' and '.join(counts)}; do not share it."
    attacks = [stats["attack"] for stats in of.values() if stats["attack"]]
    worst = max(attacks, key=lambda attack: float(attack["auc"]), default=None)
    if worst is None or worst["auc_95"][0] < _KNOWN_MEMBER:
        return "Nothing could be extracted."
    low, high = worst["auc_95"]
    return (
        f"Nothing could be extracted; membership of a note can be guessed with AUC {worst['auc']:.2f} ({low:.2f} to "
        f"{high:.2f}): others may infer that a note was used in training."
    )


def _extracted(side: _Stats) -> str:
    return f"{side['extractable']:,} of {side['passages']:,}"


CANARY_HEAD = ("copies", "sentences", "bits of exposure, mean", "most", "extracted verbatim")


def canary_rows(canaries: Mapping[str, Any] | None) -> list[tuple[str, ...]]:
    """Return the canary table's rows, one per number of copies, cells as in CANARY_HEAD."""
    rows: list[tuple[str, ...]] = []
    for copies, of in (canaries["by_copies"] if canaries else {}).items():
        mean, most = (f"{of[which]:.1f}" for which in ("mean_bits", "most_bits"))
        rows.append((copies, str(of["sentences"]), mean, most, str(of["extracted"])))
    return rows


def canary_sentence(canaries: Mapping[str, Any]) -> str:
    """Return a one-line summary of the canaries' exposure."""
    exposure = ", ".join(
        f"{mean} bits at {copies} {'copy' if copies == '1' else 'copies'} ({extracted} of {sentences} extracted)"
        for copies, sentences, mean, _, extracted in canary_rows(canaries)
    )
    most = math.log2(canaries["references"] + 1)
    return f"canaries in {canaries['source']}: exposure {exposure} (chance 1.4, maximum {most:.0f})"


def _with_interval(attack: _Stats, rate: str) -> str:
    low, high = attack[f"{rate}_95"]
    return f"{attack[rate]:.3f} ({low:.3f} to {high:.3f})"


Decode = Callable[[Sequence[int] | np.ndarray], str]
Links = Callable[[str], Iterable[tuple[str, str]]]  # (URL, label) of the places of a text in training documents
_Passage = tuple[str, str | None, str, str]  # heading, prompt, recited part, rest


def render_leak(
    found: Mapping[str, Mapping[str, Leak]],
    names: Mapping[str, Sequence[str]],
    decode: Decode,
    links: Links,
    *,
    budget: int,
) -> str:
    """Return a self-contained HTML page that contains private text.

    `found`: {source: {model: leak}}. `names`: names of each source's training documents. `budget`: tokens of forward
    passes that the measurement was allowed.
    """
    stats = {source: {model: leak.stats() for model, leak in leaks.items()} for source, leaks in found.items()}
    models = dict.fromkeys(model for leaks in found.values() for model in leaks)
    sampled = max((leak.extraction.stats["sampled_tokens"] for of in found.values() for leak in of.values()), default=0)
    samples = f"Texts of {sampled:,} tokens were" if sampled else "No text was"
    text = read_text(Path(__file__).with_name("leak.html"))
    budgeted, *explained = text.format(budget=f"{budget:,}", samples=samples).splitlines()
    parts = [
        '<p class="note bad">This page contains private text. Do not share it.</p>',
        *(f"<p><b>{escape(model)}</b>: {escape(verdict(stats, model))}</p>" for model in models),
        render_table(HEAD, leak_rows(stats)),
        budgeted,
        "".join(explained),
    ]
    for source, leaks in found.items():
        for model, leak in leaks.items():
            parts.append(f"<section><h2>{escape(source)}, {escape(model)}</h2>")
            scored, own = leak.train, names[source]
            shown = [_recital(finding, own, decode) for finding in leak.extraction.findings[:_SHOWN]]
            for sample, row in leak.extraction.runs[:_RUNS_SHOWN]:
                heading = f"{own[row]}: {len(sample):,} tokens, in a sample without a prompt"
                shown.append((heading, None, decode(sample), ""))
            parts += [_render(passage, links) for passage in shown]
            run = scored.longest_run.tolist()
            ids = [token for i in run for token in scored.passages.ids(i)[1][: scored.greedy[i]]]
            if ids:
                name = own[scored.passages.documents[run[0]]]
                longest = _render(("", None, decode(ids), ""), links)
                parts.append(f"<p>Longest verbatim run, {len(ids):,} tokens of {escape(name)}:</p>{longest}")
            else:
                parts.append("<p>No passage is continued with the right token.</p>")
            worst = np.argsort(-scored.log_pz, kind="stable")[:_SHOWN].tolist()
            parts.append("".join(_render(_scored(scored, i, own, decode), links) for i in worst))
            parts.append("</section>")
    return render_page("Extractable private text", cards=[], live=False, before="\n".join(parts))


def _recital(finding: Recital, names: Sequence[str], decode: Decode) -> _Passage:
    """Return a sentence with its prompt and recited span, and the documents it occurs in."""
    sentence = finding.sentence
    _, first, end = next(span for span in sentence.spans if span[0] == finding.words)
    places = ", ".join(names[row] for row in sentence.documents[:3])
    more = f" and {len(sentence.documents) - 3:,} more" if len(sentence.documents) > 3 else ""
    how = f"after {plural(finding.words, 'word')}" if finding.words else "without a prompt"
    heading = f"{places}{more}: {how}, {'greedy' if finding.greedy else 'sampled'}"
    rest = sentence.text[len(decode(sentence.ids[:end])) :]
    return heading, decode(sentence.ids[:first]), decode(sentence.ids[first:end]), rest


def _scored(scored: Scored, i: int, names: Sequence[str], decode: Decode) -> _Passage:
    prompt, asked = scored.passages.ids(i)
    name, greedy = names[scored.passages.documents[i]], scored.greedy[i]
    heading = f"{name}, token {scored.passages.starts[i]:,}: {_samples(scored.log_pz[i])} needed"
    if scored.extractable[i]:
        heading += f", {_samples(scored.log_pz_alone[i])} without the beginning"
    return heading, decode(prompt), decode(asked[:greedy]), decode(asked[greedy:])


def _render(passage: _Passage, links: Links) -> str:
    """Render a text under its heading, the prompt in grey, the recited part in bold; below, where it stands."""
    heading, prompt, recited, rest = passage
    head = f"<h3>{escape(heading)}</h3>" if heading else ""
    given = "" if prompt is None else f"<i>{escape(prompt)}</i>"
    places = [f'<a href="{escape(url)}">{escape(label)}</a>' for url, label in links(f"{prompt or ''}{recited}{rest}")]
    below = f"<p>{', '.join(places)}</p>" if places else ""
    return f'{head}<pre class="passage" dir="auto">{given}<b>{escape(recited)}</b>{escape(rest)}</pre>{below}'


def _samples(log_pz: float) -> str:
    samples = samples_needed(float(np.exp(log_pz)), 0.5)
    return plural(int(samples), "sample") if samples < 10**6 else f"{samples:.1g} samples"


def samples_needed(pz: float, p: float) -> float:
    """Return the samples needed to see a suffix of probability `pz` with probability >= p; inf if impossible."""
    if pz <= 0:
        return math.inf
    if pz >= 1:
        return 1
    return max(1, math.ceil(math.log1p(-p) / math.log1p(-pz)))
