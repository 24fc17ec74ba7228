"""Results of a run as chat page and report tell them, and whether they equal the committed dvc.lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_gpt.eval.ability import best_temperature
from niels_gpt.files.checks import described_by
from niels_gpt.files.messages import read_text, visible
from niels_gpt.leak.page import verdict
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.layout import LOCK, METRICS
from niels_gpt.pipeline.repository import changed, committed
from niels_gpt.pipeline.results import final_models, read_metrics, read_result
from niels_gpt.pipeline.yaml_files import parse_yaml
from niels_gpt.report.tables import HEAD, score_rows

if TYPE_CHECKING:
    from niels_gpt.talk.talker import Talker


def temperature_of(model: str) -> float:
    """Return the temperature to chat with a model at, by its report card."""
    cards = read_metrics(layout.SCORES).get(layout.CARD, {}) if layout.SCORES.is_file() else {}
    with described_by(layout.SCORES):
        return best_temperature(cards.get(model, {}))


def model_facts(talker: Talker) -> dict[str, str]:
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


def introduction(talker: Talker) -> dict[str, Any]:
    """Return what the page begins with: the model's name by its sources, what it was trained on, its temperature."""
    size = f"{talker.model.parameter_count() / 1e6:.1f} M"
    shares = {stage: _shares(stage) for stage in ("train", "sft")}
    known = talker.name in (layout.PRETRAINED.name, layout.TUNED.name) and shares["train"]
    if not known:
        return {"name": f"{talker.name}, {size} parameters", "temperature": temperature_of(talker.name)}
    text, chats = ([f"{name} ({share:.0%})" for name, share in shares[stage].items()] for stage in ("train", "sft"))
    tuned = f", then on chats: {', '.join(chats)}" if chats and talker.name == layout.TUNED.name else ""
    return {
        "name": f"{' and '.join(list(shares['train'])[:2])}, {size} parameters",
        "trained_on": f"Trained on text: {', '.join(text)}{tuned}.",
        "temperature": temperature_of(talker.name),
    }


def _shares(stage: str) -> dict[str, float]:
    """Return the sources that a training stage sampled, the largest share first; {} if there are no metrics of it."""
    path = METRICS / f"{stage}.json"
    mix = read_metrics(path).get("mix", {}) if path.is_file() else {}
    with described_by(path):
        shares = {name: row["drawn"] for name, row in mix.items() if row["drawn"]}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


_DATA = ("base", "load", "duplicates", "split", "tokenizer", "tokenize", "cache")  # the stages that make the data


def what_is_committed(root: Path) -> list[str]:
    """Return sentences on whether the last run equals the committed one (if known), and on how to commit it."""
    try:
        locks = committed(root, LOCK) or "", read_text(root / LOCK)
        before, now = (parse_yaml(text, name=str(LOCK)) for text in locks)
        compared = compare_runs(now, before)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # no git, no commit, half a dvc.lock
        compared = []
    if not (files := changed(root, LOCK, METRICS)):
        return compared
    return [
        *compared,
        f"This run is not in git yet ({_first(2, files)}).",
        "`make baseline` commits these files only; experiments are then compared with this machine's results.",
    ]


def _first(n: int, names: Sequence[str]) -> str:
    return ", ".join(names[:n]) + (f" and {len(names) - n} more" if len(names) > n else "")


def compare_runs(now: Mapping[str, Any], committed: Mapping[str, Any]) -> list[str]:
    """Return sentences comparing two dvc.lock trees, on data and on weights; none if a run did not reach `cache`."""
    stages, others = (dict(lock.get("stages") or {}) for lock in (now, committed))
    for run in (stages, others):
        run.pop("code", None)  # its outputs then count as external inputs of the other stages
    if _DATA[-1] not in stages or _DATA[-1] not in others:
        return []
    data = {name for name in (*stages, *others) if name.partition("@")[0] in _DATA}
    trained = {*stages, *others} - data
    other_data = _differing(data, stages, others)
    why = "since the data differ" if other_data else "as expected on another type of CPU, which rounds differently"
    why, other_weights = _reason(trained, stages, others) or why, _differing(trained, stages, others)
    return [
        _comparison("data", other_data, _reason(data, stages, others) or "although all inputs are equal"),
        _comparison("weights and their metrics", other_weights, why),
    ]


def _comparison(what: str, differing: list[str], reason: str) -> str:
    if not differing:
        return f"The {what} match the committed run byte for byte."
    return f"The {what} differ from the committed run, {reason}: {_first(4, differing)}."


def _differing(names: set[str], stages: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    ours, theirs = (_hashes(run, names, "outs") for run in (stages, others))
    return sorted(path for path in {*ours, *theirs} if ours.get(path) != theirs.get(path))


def _reason(names: set[str], stages: Mapping[str, Any], others: Mapping[str, Any]) -> str:
    """Return a clause naming the stages whose parameters or external inputs differ; "" if none do."""
    made = {path for run in (stages, others) for path in _hashes(run, set(run), "outs")}
    changed = sorted(name for name in names if _inputs(stages, name, made) != _inputs(others, name, made))
    return f"since parameters, code or inputs of {', '.join(changed)} differ" if changed else ""


def _within(path: str, other: str) -> bool:
    """Return whether two paths are equal, or one lies in the other."""
    return path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/")


def _hashes(stages: Mapping[str, Any], names: set[str], kind: str) -> dict[str, str]:
    entries = [entry for name in names for entry in (stages.get(name) or {}).get(kind, [])]
    return {entry["path"]: entry.get("md5", "") for entry in entries}


def _inputs(stages: Mapping[str, Any], name: str, made: set[str]) -> tuple[Any, dict[str, str]]:
    """Return a stage's parameters and the hashes of its external inputs: code and text, no outputs of stages."""
    deps = _hashes(stages, {name}, "deps")
    outside = {path: md5 for path, md5 in deps.items() if not any(_within(path, out) for out in made)}
    return (stages.get(name) or {}).get("params"), outside


_SUMMARISED = (layout.SCORES, layout.TRAINED, layout.SAMPLES)
_PLACES = (
    ("metrics", "metrics/*.json, and curves in metrics/*.tsv"),
    ("report", "metrics/report.html; `niels-gpt report` adds when, where and how long it trained"),
    ("talk", "`niels-gpt chat`, or `niels-gpt serve` for a web page"),
    ("tokens", "cache/tokens/, listed with their sha256 in cache/mix.json and chat_mix.json"),
    ("run logs", "logs/*.jsonl (times and speed, not tracked); `niels-gpt report --live` plots them"),
)


def summary_lines() -> Iterator[str]:
    """Yield the lines of `niels-gpt report --text`: scores, mix, a sample, leaks, state of the commit, and paths."""
    missing = [path for path in _SUMMARISED if not path.is_file()]
    if missing:
        raise ValueError(f"{', '.join(map(str, missing))} missing: run `dvc repro` first")
    scores, trained = read_result(layout.SCORES), read_result(layout.TRAINED)
    question, _, answer = read_text(layout.SAMPLES).split("\n## ")[-1].partition("\n")
    yield ""
    beside = {name: table for name, table in read_metrics(layout.SCORES).items() if name in layout.YARDSTICKS}
    rows = (HEAD, *score_rows({**scores, **beside}))
    widest = max(len(row.held_out) for row in rows)
    for row in rows:
        yield f"{row.model:<10}{row.held_out:<{widest}}{row.nats:>14}{row.bits:>14}{row.tokens:>12}"
    mix = ", ".join(f"{source} {share['drawn']:.3f}" for source, share in trained["mix"].items())
    yield f"\n{trained['parameters']:,} parameters, {trained['tokens']:,} training tokens, sampled from {mix}"
    models = final_models()
    kind = "Question" if layout.TUNED.name in models else "Prompt"
    yield visible(f"\n{kind}: {question}\n\n{answer.strip()}\n")
    if layout.LEAK.is_file() and (leaks := read_result(layout.LEAK)["sources"]):
        yield from (f"Private text in {name}: {verdict(leaks, name)}" for name in models)
    yield from (*what_is_committed(Path()), "")
    folders = " and ".join(f"{folder}/" for folder in models.values())
    for what, where in (("models", f"{folders} (best.pt, last.pt, config.json)"), *_PLACES):
        yield f"{what:<9}{where}"
