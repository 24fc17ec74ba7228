"""What `make run` ends with: the last evaluation, something that a model wrote, and where everything lies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from niels_gpt.files.sentences import read_text, visible
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.left_out import final_models
from niels_gpt.pipeline.reproduction import what_is_committed
from niels_gpt.pipeline.results import read_result
from niels_gpt.report.leak import verdict
from niels_gpt.report.scores import HEAD, score_rows

_SUMMARISED = (layout.SCORES, layout.TRAINED, layout.SAMPLES)
_PLACES = (
    ("metrics", "metrics/*.json, and curves in metrics/*.tsv"),
    ("report", "metrics/report.html, all of it on one page; `niels-gpt report` adds when, where and how long"),
    ("talk", "`niels-gpt chat`, or `niels-gpt serve` for a web page"),
    ("tokens", "cache/tokens/ and cache/sft/, listed with their sha256 in cache/mix.json and chat_mix.json"),
    ("run logs", "logs/*.jsonl (times and speed, not tracked); `niels-gpt watch` draws them"),
)


def summary_lines() -> Iterator[str]:
    missing = [path for path in _SUMMARISED if not path.is_file()]
    if missing:
        raise ValueError(f"{', '.join(map(str, missing))} not there yet: run `dvc repro` first")
    scores, trained = read_result(layout.SCORES), read_result(layout.TRAINED)
    question, _, answer = read_text(layout.SAMPLES).split("\n## ")[-1].partition("\n")
    yield ""
    rows = (HEAD, *score_rows(scores))
    widest = max(len(row.held_out) for row in rows)
    for row in rows:
        yield f"{row.model:<10}{row.held_out:<{widest}}{row.nats:>14}{row.bits:>14}{row.tokens:>12}"
    mix = ", ".join(f"{source} {share['drawn']:.3f}" for source, share in trained["mix"].items())
    yield f"\n{trained['parameters']:,} parameters, {trained['tokens']:,} tokens seen, drawn from {mix}"
    models = final_models()
    asked = "Asked" if layout.TUNED.name in models else "Begun with"
    yield visible(f"\n{asked}: {question}\n\n{answer.strip()}\n")
    if layout.LEAK.is_file() and (leaks := read_result(layout.LEAK)["sources"]):
        yield from (f"Private text in {name}: {verdict(leaks, name)}" for name in models)
    yield from (*what_is_committed(Path()), "")
    folders = " and ".join(f"{folder}/" for folder in models.values())
    for what, where in (("models", f"{folders} (best.pt, last.pt, config.json)"), *_PLACES):
        yield f"{what:<9}{where}"
