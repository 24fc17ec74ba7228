"""`niels-gpt compare`: what experiments were given, and what came of them, beside each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from niels_gpt.files.atomic import atomic_path
from niels_gpt.files.descriptions import check_keys
from niels_gpt.files.sentences import visible
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.console import one_sentence
from niels_gpt.pipeline.experiments import WORKSPACE, Experiment, list_experiments, read_experiments
from niels_gpt.pipeline.git import ask_git
from niels_gpt.pipeline.results import without_card
from niels_gpt.pipeline.yaml12 import parse_yaml
from niels_gpt.report import comparison
from niels_gpt.report.comparison import Result, legend, measures, notes, render_comparison
from niels_gpt.report.grid import lay_out
from niels_gpt.report.page import Training, leaves
from niels_gpt.report.tsv import parse_tsv

PAGE = layout.METRICS / "compare.html"  # git ignores it
_WIDTH = 100


_SUMMARY = ("steps", "tokens", "parameters", "loss", "best_val_loss", "best_step", "mix.*.p", "mix.*.rows")
_LEAK = ("sources.*.*.extractable_sentences", "sources.*.*.extractable_passages")


def compare(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[EXP]...", help="experiments, commits, workspace; without any: all of them"),
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="without names: so many of the newest experiments")] = 20,
    html: Annotated[Path, typer.Option("--html", metavar="FILE", help="where the page with the curves goes")] = PAGE,
) -> None:
    """Experiments beside each other: ten numbers each, the parameters that differ, and a page with their curves."""
    with one_sentence():
        if not layout.DAG.is_file():
            raise ValueError("there is no dvc.yaml here: run this in the project's folder")
        _refuse_foreign(html)
        asked, older = list(dict.fromkeys(names or [])), 0
        if not asked:
            experiments = list_experiments(Path())
            head = ["HEAD"] if ask_git(Path(), "rev-parse", "--verify", "--quiet", "HEAD") else []
            asked, older = [WORKSPACE, *head, *list(experiments)[:n]], len(experiments) - n
        faults: list[str] = []
        results = [result_of(experiment, fault=faults.append) for experiment in read_experiments(Path(), asked, _FILES)]
        page = render_comparison(results)
        with atomic_path(html) as temporary:
            temporary.write_text(page, encoding="utf-8")
        for line in lay_out(comparison.compare(results), width=_WIDTH):
            typer.echo(visible(line))
        typer.echo()
        more = [f"{older} older experiments are left out: -n {n + older} shows them"] if older > 0 else []
        for said in (*faults, *more, *notes(results)):
            typer.echo(f"note: {visible(said)}")
        for line in (*legend(results), f"* is the best, - is not there; {html} has the learning curves"):
            typer.echo(line)


def _refuse_foreign(html: Path) -> None:
    """Raise where there is a file of that name that this command did not write."""
    if html.exists() and not (html.is_file() and comparison.TITLE in html.read_text("utf-8", errors="replace")[:4000]):
        raise ValueError(f"{html} is there already and is no page of this command's: give --html another name")


_DRAWN = ("train", "sft")  # the stages whose curves are compared
_LOSSES, _VALIDATIONS = {"step", "loss", "lr"}, {"step", "val_loss"}  # the columns that are drawn
_FILES = [
    *map(str, (layout.PARAMS, layout.SCORES, layout.LEAK, layout.MEMORIZED)),
    *(f"{layout.METRICS}/{stage}{end}" for stage in _DRAWN for end in (".json", ".tsv", "_val.tsv")),
]


def result_of(experiment: Experiment, *, fault: Callable[[str], None]) -> Result:
    """An experiment as far as it can be read: files that it does not have, or that are damaged, are missing in it."""

    def read(path: str | Path, parse: Callable[[str], Any]) -> Any:
        try:
            return parse(experiment.files[str(path)]) if str(path) in experiment.files else {}
        except (ValueError, RecursionError):
            fault(f"{path} of {experiment.name} is damaged, or of another version, and is left out")
            return {}

    params = read(layout.PARAMS, _parameters)
    trainings = []
    for stage in _DRAWN:
        file = f"{layout.METRICS}/{stage}"
        summary = read(f"{file}.json", partial(_object, _SUMMARY))
        losses, validations = (
            read(f"{file}.tsv", partial(_curve, _LOSSES)),
            read(f"{file}_val.tsv", partial(_curve, _VALIDATIONS)),
        )
        if summary and losses and validations:
            trainings.append(Training(stage, summary, losses, validations))
    numbers = measures(
        trainings=trainings,
        scores=read(layout.SCORES, lambda text: without_card(_object((), text))),
        leaks=read(layout.LEAK, partial(_object, _LEAK)).get("sources", {}),
        memorized=read(layout.MEMORIZED, partial(_object, ("documents.[].after.median_pz",))).get("documents", []),
        sections={
            value: name.removesuffix(".val_name") for name, value in params.items() if name.endswith(".val_name")
        },
    )
    return Result(experiment.name, params or None, numbers, trainings)


def _object(required: Sequence[str], text: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(text)
    check_keys(values, required, path="the file")
    return values


def _curve(columns: set[str], text: str) -> list[dict[str, float]]:
    rows = parse_tsv(text, path="the curve")
    if not columns <= set(rows[0]):
        raise ValueError(f"a curve without {columns - set(rows[0])}")
    return rows


def _parameters(text: str) -> dict[str, Any]:
    """All that decide a number, by dotted name."""
    values = parse_yaml(text, name=str(layout.PARAMS))
    if not isinstance(values, dict):
        raise ValueError("no parameters")
    return {name: value for name, value in leaves(values) if not name.startswith("runtime.")}
