"""Results side by side: about ten numbers each, the parameters that differ, the learning curves on one page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import chain
from typing import Any, Literal

from niels_gpt.report.grid import BEST, MISSING, Grid
from niels_gpt.report.page import Training, finished_card, render_page, render_table

_MOST_TEXTS = 3  # of a model's held-out texts: those with the most tokens
_MOST_PARAMETERS = 8
_MOST_DRAWN = 8  # as many curves as there are colours
# What a source's section says beside its text and its split: it changes nothing about what is held out.
_HARMLESS = ("budget.max_train_tokens", "remote", "stored")
TITLE = "Experiments side by side"


@dataclass(frozen=True)
class Measure:
    """A number to compare results by, known by its name; `says` tells more. Where parameters differ that stand in
    the sections `same`, it is not of the same thing in all results, and none is the best."""

    name: str
    best: Literal["lowest", "highest", ""] = field(default="", compare=False)
    form: str = field(default=",.0f", compare=False)
    same: tuple[str, ...] = field(default=(), compare=False)
    says: str = field(default="", compare=False)


@dataclass(frozen=True)
class Result:
    """One experiment: all its parameters by dotted name (None where they are not known), and what came of them."""

    name: str
    params: Mapping[str, Any] | None = None
    numbers: Mapping[Measure, float] = field(default_factory=dict)
    trainings: Sequence[Training] = ()


_VALIDATION = "lowest validation: nats a token, in pretraining"
_SCORES = "pretrain, sft: bits a byte of that model on that held-out text"
_TOLD = "extractable: private sentences and passages, verbatim, of either model"
_BY_HEART = "median P(z): of what the spliced model learned by heart"


def measures(
    *,
    trainings: Sequence[Training],
    scores: Mapping[str, Mapping[str, Mapping[str, float]]],
    leaks: Mapping[str, Mapping[str, Mapping[str, Any]]],
    memorized: Sequence[Mapping[str, Mapping[str, Any]]],
    sections: Mapping[str, str],
) -> dict[Measure, float]:
    """Of one experiment, as far as there are any. `sections`: by name of a held-out text, its source's parameters."""
    found: dict[Measure, float] = {}
    for training in trainings:
        if training.name == "train":
            found[Measure("parameters")] = training.summary["parameters"]
            found[Measure("tokens seen")] = training.summary["tokens"]
            text = ("p_val", "sources", "duplicates", "tokenizer", "train.eval_steps")
            found[Measure("lowest validation", "lowest", ".4f", text, _VALIDATION)] = training.summary["best_val_loss"]
    told = set[str]()
    for model, table in scores.items():
        # The texts that the first model was asked about are no news of the second, which is asked about chats as well.
        new = {name: score for name, score in table.items() if name not in told}
        for name, score in sorted(new.items(), key=lambda item: -item[1]["tokens"])[:_MOST_TEXTS]:
            same = ("duplicates", "eval.max_tokens", sections.get(name, ""))
            measure = Measure(f"{model} {name}", "lowest", ".4f", tuple(filter(None, same)), _SCORES)
            found[measure] = score["bits_per_byte"]
        told |= set(table)
    if leaks:
        passages = sum(
            leak["extractable_sentences"] + leak["extractable_passages"]
            for models in leaks.values()
            for leak in models.values()
        )
        found[Measure("extractable", "lowest", same=("leak", "sources", "tokenizer"), says=_TOLD)] = passages
    if memorized:
        medians = [document["after"]["median_pz"] for document in memorized]
        documents = ("memorize", "splice", "sources", "tokenizer")
        found[Measure("median P(z)", "highest", ".4f", documents, _BY_HEART)] = sum(medians) / len(medians)
    return found


def differing(results: Sequence[Result]) -> list[str]:
    """The parameters that are not the same in all results, in the order in which they are written."""
    known = [result.params for result in results if result.params is not None]
    names = dict.fromkeys(chain.from_iterable(known))
    return [name for name in names if any(params.get(name, ...) != known[0].get(name, ...) for params in known)]


def compare(results: Sequence[Result]) -> Grid:
    """The parameters that differ and the measures as rows, a column for each result."""
    differ = differing(results)
    shown = [(name, [_value(result.params, name) for result in results]) for name in differ[:_MOST_PARAMETERS]]
    shown += [(measure.name, _numbers(measure, results, differ)) for measure in _measures(results)]
    return Grid([result.name for result in results], [name for name, _ in shown], [cells for _, cells in shown])


def notes(results: Sequence[Result]) -> Iterator[str]:
    """What the table leaves out."""
    differ = differing(results)
    if len(differ) > _MOST_PARAMETERS:
        yield f"{len(differ) - _MOST_PARAMETERS} more parameters differ: the page has them all"
    unfair = sorted({name for measure in _measures(results) if measure.best for name in _unlike(measure, differ)})
    if unfair:
        yield f"no best is marked where numbers are not of the same text or model: {', '.join(unfair[:4])} differ"


def legend(results: Sequence[Result]) -> list[str]:
    """What the names of the measures leave open."""
    return list(dict.fromkeys(measure.says for measure in _measures(results) if measure.says))


def render_comparison(results: Sequence[Result]) -> str:
    """The page: the table, the learning curves one over the other, all parameters that differ."""
    grid, differ = compare(results).turned(), differing(results)
    table = render_table(["", *grid.columns], [[name, *row] for name, row in zip(grid.rows, grid.cells, strict=True)])
    said = "".join(f'<p class="note">{escape(note)}.</p>' for note in notes(results))
    marks = "* is the best of a column, - is not there."
    read = f"<p>{escape('. '.join([*legend(results), marks]))}</p>"
    rest = differ[_MOST_PARAMETERS:]
    rows = [[name, *(_value(result.params, name) for result in results)] for name in rest]
    others = render_table(["parameter", *(result.name for result in results)], rows)
    by_stage = dict.fromkeys(training.name for result in results for training in result.trainings)
    cards = [
        finished_card(training, run=f"{result.name} {stage}", shown=stage == "train" and number < _MOST_DRAWN)
        for stage in by_stage
        for number, result in enumerate(results)
        for training in result.trainings
        if training.name == stage
    ]
    return render_page(
        TITLE,
        cards=cards,
        live=False,
        before=f'<section class="compared">{table}{read}{said}</section>',
        after=f'<section class="compared"><h2>Other parameters that differ</h2>{others}</section>' if rest else "",
    )


def _measures(results: Sequence[Result]) -> list[Measure]:
    return list(dict.fromkeys(chain.from_iterable(result.numbers for result in results)))


def _numbers(measure: Measure, results: Sequence[Result], differ: Sequence[str]) -> list[str]:
    values = [result.numbers.get(measure) for result in results]
    known = [value for value in values if value is not None]
    best = None
    if measure.best and len(set(known)) > 1 and not _unlike(measure, differ):
        best = min(known) if measure.best == "lowest" else max(known)
    return [MISSING if value is None else f"{value:{measure.form}}{BEST if value == best else ''}" for value in values]


def _unlike(measure: Measure, differ: Sequence[str]) -> list[str]:
    """The parameters that differ without which a measure would be of the same thing in all results."""
    return [
        name
        for name in differ
        if any(name == same or name.startswith(f"{same}.") for same in measure.same) and not name.endswith(_HARMLESS)
    ]


def _value(params: Mapping[str, Any] | None, name: str) -> str:
    if params is None or name not in params:
        return MISSING
    value = params[name]
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return f"{value:g}" if isinstance(value, float) else str(value)
