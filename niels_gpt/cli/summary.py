"""Results of a run as chat page and report tell them, and whether they equal the committed dvc.lock."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_gpt.eval.ability import best_temperature
from niels_gpt.files.messages import read_text, visible
from niels_gpt.leak.page import verdict
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.repository import changed, committed, read_records
from niels_gpt.pipeline.results import final_models, read_metrics, read_result
from niels_gpt.report.tables import HEAD, score_rows

if TYPE_CHECKING:
    from niels_gpt.talk.talker import Talker


def temperature_of(model: str) -> float:
    """Return the temperature to chat with a model at, by its report card."""
    cards = read_metrics(layout.SCORES).get(layout.CARD, {}) if layout.SCORES.is_file() else {}
    return best_temperature(cards.get(model, {}))


def model_facts(talker: "Talker") -> dict[str, str]:
    """Return what the page's settings list about a model."""
    facts = {
        "model": talker.name,
        "parameters": f"{talker.model.parameter_count():,}",
        "context": f"{talker.model.cfg.T} tokens",
        "vocabulary": f"{talker.model.cfg.V:,}",
        "chat format": "text transcript" if talker.renderer == "transcript" else "chat tokens",
    }
    if layout.SCORES.is_file():
        table = read_result(layout.SCORES).get(talker.name, {})
        facts |= {f"bits per byte on {name}": f"{score['bits_per_byte']:.3f}" for name, score in table.items()}
    return facts


def introduction(talker: "Talker") -> dict[str, Any]:
    """Return what the page begins with: the model's name by its sources, what it was trained on, its temperature."""
    name, facts = talker.name, dict[str, Any](temperature=temperature_of(talker.name))
    text, chats = _sources("train"), _sources("sft")
    if talker.name in (layout.PRETRAINED.name, layout.TUNED.name) and text:
        name = " and ".join(list(text)[:2])
        tuned = f", then on chats: {', '.join(chats.values())}" if chats and talker.name == layout.TUNED.name else ""
        facts["trained_on"] = f"Trained on text: {', '.join(text.values())}{tuned}."
    return {"name": f"{name}, {talker.model.parameter_count() / 1e6:.1f} M parameters", **facts}


def _sources(stage: str) -> dict[str, str]:
    """Return {name: "name (share)"} of the sources that a training stage sampled, the largest first."""
    path = layout.METRICS / f"{stage}.json"
    mix = read_metrics(path).get("mix", {}) if path.is_file() else {}
    shares = {name: row["drawn"] for name, row in mix.items() if row["drawn"]}
    return {name: f"{name} ({shares[name]:.0%})" for name in sorted(shares, key=lambda name: -shares[name])}


_DATA = ("base", "load", "duplicates", "split", "tokenizer", "tokenize", "cache")  # the stages that make the data
_OUTPUT = re.compile(r"(?!cache/code/)(cache|models|metrics)/")  # of a stage, but for the fingerprints of code


def what_is_committed() -> list[str]:
    """Return sentences on whether the last run equals the committed one (if known), and on how to commit it."""
    current = read_text(layout.LOCK) if layout.LOCK.is_file() else ""
    compared = compare_runs(*(read_records(text) or {} for text in (current, committed(Path(), layout.LOCK) or "")))
    if files := changed(Path(), layout.LOCK, layout.METRICS):
        compared += [
            f"This run is not in git yet ({_first(2, files)}).",
            "`make baseline` commits these files only; experiments are then compared with this machine's results.",
        ]
    return compared


def _first(n: int, names: Sequence[str]) -> str:
    return ", ".join(names[:n]) + (f" and {len(names) - n} more" if len(names) > n else "")


def compare_runs(now: Mapping[str, Any], committed: Mapping[str, Any]) -> list[str]:
    """Return sentences comparing the stages of two runs, on data and on weights; none if one did not reach `cache`."""
    if not all(_DATA[-1] in run for run in (now, committed)):
        return []
    names = {*now, *committed} - {"code"}  # whose outputs count as inputs of the other stages
    data = {name for name in names if name.partition("@")[0] in _DATA}
    sentences, why = [], "although all inputs are equal"
    for what, part in (("data", data), ("weights and their metrics", names - data)):
        ours, theirs = (_hashes(run, part, "outs") for run in (now, committed))
        differing = sorted(path for path in {*ours, *theirs} if ours.get(path) != theirs.get(path))
        if other := sorted(name for name in part if _inputs(now, name) != _inputs(committed, name)):
            why = f"since parameters, code or inputs of {', '.join(other)} differ"
        if differing:
            sentences.append(f"The {what} differ from the committed run, {why}: {_first(4, differing)}.")
            why = "since the data differ"
        else:
            sentences.append(f"The {what} match the committed run byte for byte.")
            why = "as expected on another type of CPU, which rounds differently"
    return sentences


def _hashes(run: Mapping[str, Any], names: Iterable[str], kind: str) -> dict[str, str]:
    return {file["path"]: file["md5"] for name in names for file in run.get(name, {}).get(kind, [])}


def _inputs(run: Mapping[str, Any], name: str) -> tuple[Any, dict[str, str]]:
    """Return a stage's parameters and the hashes of its external inputs: code and text, no outputs of stages."""
    deps = _hashes(run, [name], "deps")
    return run.get(name, {}).get("params"), {path: md5 for path, md5 in deps.items() if not _OUTPUT.match(path)}


_PLACES = """\
metrics  metrics/*.json, and curves in metrics/*.tsv
report   metrics/report.html; `niels-gpt report` adds when, where and how long it trained
talk     `niels-gpt chat`, or `niels-gpt serve` for a web page
tokens   cache/tokens/, listed with their sha256 in cache/mix.json and chat_mix.json
run logs logs/*.jsonl (times and speed, not tracked); `niels-gpt report --live` plots them"""


def summary_lines() -> Iterator[str]:
    """Yield the lines of `niels-gpt report --text`: scores, mix, a sample, leaks, state of the commit, and paths."""
    if missing := [path for path in (layout.SCORES, layout.TRAINED, layout.SAMPLES) if not path.is_file()]:
        raise ValueError(f"{', '.join(map(str, missing))} missing: run `dvc repro` first")
    scores, trained = read_result(layout.SCORES), read_result(layout.TRAINED)
    question, _, answer = read_text(layout.SAMPLES).split("\n## ")[-1].partition("\n")
    yield ""
    beside = {name: table for name, table in read_metrics(layout.SCORES).items() if name in layout.YARDSTICKS}
    rows = (HEAD, *score_rows({**scores, **beside}))
    widest = max(len(held_out) for _, held_out, *_ in rows)
    for model, held_out, nats, bits, tokens in rows:
        yield f"{model:<10}{held_out:<{widest}}{nats:>14}{bits:>14}{tokens:>12}"
    mix = ", ".join(f"{source} {share['drawn']:.3f}" for source, share in trained["mix"].items())
    yield f"\n{trained['parameters']:,} parameters, {trained['tokens']:,} training tokens, sampled from {mix}"
    models = final_models()
    kind = "Question" if layout.TUNED.name in models else "Prompt"
    yield visible(f"\n{kind}: {question}\n\n{answer.strip()}\n")
    if layout.LEAK.is_file() and (leaks := read_result(layout.LEAK)["sources"]):
        yield from (f"Private text in {name}: {verdict(leaks, name)}" for name in models)
    yield from (*what_is_committed(), "")
    folders = " and ".join(f"{folder}/" for folder in models.values())
    yield f"models   {folders} (best.pt, last.pt, config.json)\n{_PLACES}"
