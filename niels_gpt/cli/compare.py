"""niels-gpt compare: parameters, results and learning curves of experiments side by side."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from niels_gpt.cli.console import refuse_foreign
from niels_gpt.files.atomic import write_text
from niels_gpt.files.checks import check_keys
from niels_gpt.files.messages import visible
from niels_gpt.leak.page import extractable
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import complete
from niels_gpt.pipeline.repository import ask_git, read_committed
from niels_gpt.pipeline.results import metric_details, without_card
from niels_gpt.pipeline.yaml_files import parse_yaml
from niels_gpt.report.page import Training, finished_card, leaves, render_page, render_table
from niels_gpt.report.tables import BEST, MISSING, lay_out, parse_tsv

# DVC keeps each experiment as a git commit with parameters and metrics, under refs/exps/BASELINE/NAME. They are read
# directly from git: `dvc exp show --json` opens every commit as a repository and takes 1 s for each.

WORKSPACE = "workspace"
# DVC also keeps queued and running experiments below refs/exps, but under words instead of hashes.
_REF = re.compile(r"^(\w+) refs/exps/[0-9a-f]{2}/[0-9a-f]{38}/([^/\n]+)$", re.MULTILINE)


def list_experiments() -> dict[str, str]:
    """Return {name: commit} of all experiments, newest first; of two with the same name, the newer."""
    told = ask_git(Path(), "for-each-ref", "--sort=-committerdate", "--format=%(objectname) %(refname)", "refs/exps")
    found: dict[str, str] = {}
    for commit, name in _REF.findall(told or ""):
        found.setdefault(name, commit)
    return found


def read_experiments(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the files there are of experiments, git revisions or `workspace`, {name: {path: text}}."""
    known = list_experiments()
    ask = ("rev-parse", "--verify", "--quiet", "--end-of-options")
    commits = {name: known.get(name) or ask_git(Path(), *ask, f"{name}^{{commit}}") for name in {*names} - {WORKSPACE}}
    if unknown := [name for name in names if name != WORKSPACE and not commits[name]]:
        shown = ", ".join([WORKSPACE, "HEAD", *known][:12])
        raise ValueError(f"there is no experiment or commit {', '.join(unknown)}; known: {shown}")
    found = {}
    for name in names:
        if commit := commits.get(name):
            texts = read_committed(Path(), [(commit.strip(), path) for path in _FILES])
        else:
            files = map(Path, _FILES)
            texts = [file.read_text("utf-8", errors="replace") if file.is_file() else None for file in files]
        found[name] = {path: text for path, text in zip(_FILES, texts, strict=True) if text is not None}
    return found


_DRAWN = ("train", "sft")  # the stages whose curves are compared
_MOST_PARAMETERS = 8
# Keys of a source that change neither its text nor its split, and so leave its validation set as it is.
_HARMLESS = ("budget.max_train_tokens", "remote", "load.stored")
TITLE = "Experiments side by side"


@dataclass(frozen=True)
class Measure:
    """A number to compare results by, identified by its name; `says` is its legend.

    If a parameter at or below one of the keys `same` differs, values are not comparable and no best is marked.
    """

    name: str
    best: Literal["lowest", "highest", ""] = field(default="", compare=False)
    same: tuple[str, ...] = field(default=(), compare=False)
    says: str = field(default="", compare=False)


@dataclass(frozen=True)
class Result:
    """One experiment: its parameters by dotted name (empty if unknown), its numbers and its training curves."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[Measure, float] = field(default_factory=dict)
    trainings: Sequence[Training] = ()


_Table = Mapping[str, Mapping[str, Mapping[str, Any]]]
_VALIDATION = "lowest validation: loss in pretraining, nats/token"
_SCORES = "pretrain, sft: bits per byte of that model on that validation set"
_TOLD = "extractable: private sentences and passages that either model recites verbatim"
_BY_HEART = "median P(z): probability of passages of the spliced documents"


def measures(
    params: Mapping[str, Any], *, trainings: Sequence[Training], scores: _Table, leaks: _Table, memorized: Sequence[Any]
) -> dict[Measure, float]:
    """Return the measures that an experiment has; `params` are its parameters by dotted name."""
    found: dict[Measure, float] = {}
    if summary := next((training.summary for training in trainings if training.name == "train"), None):
        found[Measure("parameters")] = summary["parameters"]
        found[Measure("tokens seen")] = summary["tokens"]
        text = ("p_val", "sources", "duplicates", "tokenizer", "train.eval_steps")
        found[Measure("lowest validation", "lowest", text, _VALIDATION)] = summary["best_val_loss"]
    sections = {value: name.removesuffix(".val_name") for name, value in params.items() if name.endswith(".val_name")}
    chats = {name for name, section in sections.items() if params.get(f"{section}.use") == "chat"}
    trained = {model: table for model, table in scores.items() if model != layout.BASE.name}
    # A validation set of text is shown for the first model that has it, one of chats for the last.
    shown_for: dict[str, str] = {}
    for model, table in trained.items():
        shown_for |= {name: model for name in table if name in chats or name not in shown_for}
    for model, table in trained.items():
        own = sorted((name for name in table if shown_for[name] == model), key=lambda name: -table[name]["tokens"])
        for name in own[:3]:
            same = ("duplicates", "eval.max_tokens", *([sections[name]] if name in sections else []))
            found[Measure(f"{model} {name}", "lowest", same, _SCORES)] = table[name]["bits_per_byte"]
    if leaks:
        measure = Measure("extractable", "lowest", same=("leak", "sources", "tokenizer"), says=_TOLD)
        found[measure] = extractable(leaks, without=layout.BASE.name)
    if memorized:
        medians = [document["after"]["median_pz"] for document in memorized]
        documents = ("memorize", "splice", "sources", "tokenizer")
        found[Measure("median P(z)", "highest", documents, _BY_HEART)] = sum(medians) / len(medians)
    return found


def differing(results: Sequence[Result]) -> list[str]:
    """Return the names of parameters that differ between results, in file order."""
    known = [result.params for result in results if result.params]
    names = dict.fromkeys(chain.from_iterable(known))
    return [name for name in names if any(params.get(name, ...) != known[0].get(name, ...) for params in known)]


def comparison_of(results: Sequence[Result]) -> list[list[str]]:
    """Return a table with a column per result; below the names are the first differing parameters and all measures."""
    table = [["", *(result.name for result in results)]]
    table += [[name, *_values(name, results)] for name in differing(results)[:_MOST_PARAMETERS]]
    return table + [[measure.name, *_numbers(measure, results)] for measure in _measures(results)]


def notes(results: Sequence[Result]) -> Iterator[str]:
    """Yield what the table leaves out: further parameters, and why no best value is marked."""
    if len(differ := differing(results)) > _MOST_PARAMETERS:
        yield f"{len(differ) - _MOST_PARAMETERS} more parameters differ: the page has them all"
    unfair = sorted({name for measure in _measures(results) if measure.best for name in _unlike(measure, results)})
    if unfair:
        yield f"no best value is marked where text or model are not the same: {', '.join(unfair[:4])} differ"


def legend(results: Sequence[Result]) -> list[str]:
    """Return explanations of the measures, each once."""
    return list(dict.fromkeys(measure.says for measure in _measures(results) if measure.says))


def render_comparison(results: Sequence[Result]) -> str:
    """Render the HTML page: the table, overlaid learning curves, and all parameters that differ."""
    head, *rows = zip(*comparison_of(results), strict=True)
    said = "".join(f'<p class="note">{escape(note)}.</p>' for note in notes(results))
    marks = "* best of a column, - missing."
    read = f"<p>{escape('. '.join([*legend(results), marks]))}</p>"
    rest = [[name, *_values(name, results)] for name in differing(results)[_MOST_PARAMETERS:]]
    others = render_table(["parameter", *(result.name for result in results)], rest)
    runs = [(number, result.name, run) for number, result in enumerate(results) for run in result.trainings]
    curves = {stage: [run.losses for *_, run in runs if run.name == stage] for stage in _DRAWN}
    drawn = next((stage for stage, of in curves.items() if any(losses != of[0] for losses in of)), "train")
    cards = [
        finished_card(run, run=f"{name} {stage}", shown=stage == drawn and number < 8)  # 8 colours
        for stage in _DRAWN
        for number, name, run in runs
        if run.name == stage
    ]
    before = f'<section class="compared">{render_table(head, rows)}{read}{said}</section>'
    after = f'<section class="compared"><h2>Other parameters that differ</h2>{others}</section>' if rest else ""
    return render_page(TITLE, cards=cards, live=False, before=before, after=after)


def without_doubles(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    """Return each run once, under the last of its names, and a sentence for every name that was dropped.

    The workspace and HEAD come first, so a run that is also an experiment has the experiment's name.
    """
    kept, dropped = [], []
    for number, result in enumerate(results, start=1):
        if same := [later.name for later in results[number:] if replace(later, name=result.name) == result]:
            dropped.append(f"{result.name} is the same run as {same[-1]}")
        else:
            kept.append(result)
    return kept, dropped


def _measures(results: Sequence[Result]) -> list[Measure]:
    return list(dict.fromkeys(chain.from_iterable(result.numbers for result in results)))


def _numbers(measure: Measure, results: Sequence[Result]) -> list[str]:
    values = [result.numbers.get(measure) for result in results]
    known = [value for value in values if value is not None]
    best = None
    if measure.best and len(set(known)) > 1 and not _unlike(measure, results):
        best = min(known) if measure.best == "lowest" else max(known)
    form = ",d" if all(isinstance(value, int) for value in known) else ".4f"
    return [MISSING if value is None else f"{value:{form}}{BEST if value == best else ''}" for value in values]


def _unlike(measure: Measure, results: Sequence[Result]) -> list[str]:
    """Return the differing parameters that make a measure incomparable; `sources` means the sources of text."""
    written = chain.from_iterable(result.params.items() for result in results)
    chats = tuple(name.removesuffix("use") for name, value in written if name.endswith(".use") and value == "chat")
    return [
        name
        for name in differing(results)
        if any(name == same or name.startswith(f"{same}.") for same in measure.same)
        and not name.endswith(_HARMLESS)
        and not ("sources" in measure.same and name.startswith(chats))
    ]


def _values(name: str, results: Sequence[Result]) -> list[str]:
    return [_shown(result.params[name]) if name in result.params else MISSING for result in results]


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


_SUMMARY = ("steps", "tokens", "parameters", "loss", "best_val_loss", "best_step", "mix.*.p", "mix.*.rows")
_LEAK = ("sources.*.*.extractable_sentences", "sources.*.*.extractable_passages")


def compare(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[EXP]...", help="experiments, commits or `workspace`; default: all")
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="number of newest experiments, if none are named")] = 20,
    html: Annotated[Path, typer.Option(metavar="FILE", help="page to write")] = layout.METRICS / "compare.html",
) -> None:
    """Compare experiments: ten numbers each, the parameters that differ, and a page with learning curves."""
    if not layout.DAG.is_file():
        raise ValueError("there is no dvc.yaml here: run this in the project's folder")
    refuse_foreign(html, TITLE)
    asked, older = list(dict.fromkeys(names or [])), 0
    if not asked:
        experiments = list_experiments()
        head = ["HEAD"] if ask_git(Path(), "rev-parse", "--verify", "--quiet", "HEAD") else []
        asked, older = [WORKSPACE, *head, *list(experiments)[:n]], len(experiments) - n
    faults: list[str] = []
    results = [result_of(name, files, fault=faults.append) for name, files in read_experiments(asked).items()]
    if not names:
        results, doubles = without_doubles(results)
        faults += doubles
    write_text(html, render_comparison(results))
    table = lay_out(comparison_of(results), width=100)
    more = [f"{older} older experiments are not shown: -n {n + older} shows them"] if older > 0 else []
    remarks = [f"note: {said}" for said in (*faults, *more, *notes(results))]
    typer.echo(visible("\n".join([*table, "", *remarks, *legend(results)])))
    typer.echo(f"* best, - missing; {html} has the learning curves")


_FILES = [
    *map(str, (layout.PARAMS, layout.SCORES, layout.LEAK, layout.MEMORIZED)),
    *(f"{layout.METRICS}/{stage}{end}" for stage in _DRAWN for end in (".json", ".tsv", "_val.tsv")),
]
_LEFT_OUT = "{}\n"  # metrics of a stage that is left out


def result_of(name: str, files: Mapping[str, str], *, fault: Callable[[str], None]) -> Result:
    """Parse an experiment's files, {path: text}; skip missing ones, and damaged ones after calling `fault`."""

    def read(path: str | Path, parse: Callable[[str], Any]) -> Any:
        try:
            text = files.get(str(path), _LEFT_OUT)
            return {} if text == _LEFT_OUT else parse(text)
        except (ValueError, TypeError, AttributeError, RecursionError):
            fault(f"{path} of {name} is damaged, or of another version, and is skipped")
            return {}

    params = read(layout.PARAMS, lambda text: dict(leaves(complete(parse_yaml(text, name=str(layout.PARAMS))))))
    params = {name: value for name, value in params.items() if not name.startswith("runtime.")}  # changes no result
    trainings = []
    for stage in _DRAWN:
        file = f"{layout.METRICS}/{stage}"
        summary = read(f"{file}.json", partial(_object, _SUMMARY))
        losses = read(f"{file}.tsv", partial(parse_tsv, path="the curve", required=("step", "loss", "lr")))
        validations = read(f"{file}_val.tsv", partial(parse_tsv, path="the curve", required=("step", "val_loss")))
        if summary and losses and validations:
            trainings.append(Training(stage, summary, losses, validations))
    numbers = measures(
        params,
        trainings=trainings,
        scores=read(layout.SCORES, lambda text: without_card(_object((), text))),
        leaks=read(layout.LEAK, partial(_object, _LEAK)).get("sources", {}),
        memorized=read(layout.MEMORIZED, partial(_object, ("documents.[].after.median_pz",))).get("documents", []),
    )
    return Result(name, params, numbers, trainings)


def _object(required: Sequence[str], text: str) -> dict[str, Any]:
    values: dict[str, Any] = metric_details(json.loads(text))
    check_keys(values, required, path="the file")
    return values
