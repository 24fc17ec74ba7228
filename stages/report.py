"""Stage `report`: one HTML page on data, training runs and results, from the files of the other stages."""

from collections.abc import Mapping, Sequence
from typing import Any

from niels_gpt.data.corpus.mix import exposures, read_too_often
from niels_gpt.eval.ability import ability
from niels_gpt.files.checks import read_meta
from niels_gpt.leak.page import CANARY_HEAD, canary_rows, leak_rows, verdict
from niels_gpt.leak.page import HEAD as LEAKED
from niels_gpt.model.size import most_epochs
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.results import read_metrics
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.report.page import Training, render_report
from niels_gpt.report.tables import read_tsv

TUNING = {"p_sft", "sft"}
REPORTED = {"model", "tokenizer", "p_train", "p_val", "train", *TUNING}
DUPLICATES = (
    "source",
    "documents",
    "repeat another's text",
    "near duplicates",
    "in clusters",
    "skipped",
    "% of held-out 13-grams in training text",
    "% of held-out characters in such",
)


def duplicate_rows(data: Mapping[str, Mapping[str, Any]]) -> list[Sequence[str]]:
    """Return the table's rows for {source: duplicate counts, and shares of held-out text found in training text}."""
    return [
        (
            name,
            *(f"{row[count]:,}" for count in ("documents", "exact", "near", "clusters", "left_out")),
            *(f"{100 * row[share]:.2f}" for share in ("runs_in_train", "characters_in_train")),
        )
        for name, row in data.items()
    ]


def tables_of(evaluated: dict[str, Any]) -> dict[str, Sequence[Sequence[str]]]:
    """Return the tables of the report by title, each a header and rows; tables without rows are omitted."""
    leak = read_metrics(layout.LEAK)
    tables: dict[str, list[Sequence[str]]] = {
        "Report card": evaluated["card"],
        "Duplicates": [DUPLICATES, *duplicate_rows(read_metrics(layout.DATA))],
        "Private text that the models tell": [LEAKED, *leak_rows(leak["sources"])],
        "Canaries in a copy of the run": [CANARY_HEAD, *canary_rows(leak["canaries"])],
    }
    return {title: table for title, table in tables.items() if table[1:]}


def main(stage: Stage) -> None:
    """Write the page."""
    params, mix, chat_mix = stage.params, read_meta(layout.MIX), read_meta(layout.CHAT_MIX)
    evaluated = read_meta(layout.EVALUATED, required=["card", "flops_per_token", "samples"])
    scores = {model: table for model, table in read_metrics(layout.SCORES).items() if model != layout.CARD}
    trained = [name for name, folder in layout.MODEL_OF.items() if folder.name in scores]
    curves = {name: [read_tsv(layout.METRICS / f"{name}{end}.tsv") for end in ("", "_val")] for name in trained}
    trainings = [Training(name, read_metrics(layout.METRICS / f"{name}.json"), *curves[name]) for name in trained]
    tokens = {name: source["train"]["tokens"] for name, source in mix["sources"].items()}
    seen = exposures(params.p_train, tokens, drawn=params.train.total_steps * params.train.B * params.model.T)
    cards, leaks = read_metrics(layout.SCORES)[layout.CARD], read_metrics(layout.LEAK)["sources"]
    most = most_epochs(trainings[0].summary["parameters"], in_epochs=params.train.windows == "epochs")
    final = list(cards)[-1]
    can = ability(cards[final])
    page = render_report(
        verdict=[can, *([f"Private text: {verdict(leaks, final)}"] if leaks else [])],
        trainings=trainings,
        flops_per_token=evaluated["flops_per_token"],
        mix=mix,
        chat_mix=chat_mix,
        seen=seen,
        notes=read_too_often(seen, most=most),
        scores=scores,
        samples=dict(sorted(evaluated["samples"].items(), key=lambda item: ("base" in item[0], item[0]))),
        params=params.model_dump(include=REPORTED if layout.TUNED.name in scores else REPORTED - TUNING),
        tables=tables_of(evaluated),
    )
    stage.out(layout.REPORT).write_text(page, encoding="utf-8")
    stage.say(f"{', '.join(name for name in scores if name not in layout.YARDSTICKS)} -> {layout.REPORT}")


if __name__ == "__main__":
    run_stage("report", main)
