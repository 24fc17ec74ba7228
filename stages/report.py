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
from niels_gpt.report.page import Training, finished_card, render_report
from niels_gpt.report.tables import HEAD, read_tsv, score_rows

TUNING = {"p_sft", "sft"}
REPORTED = {"model", "tokenizer", "p_train", "p_val", "train", *TUNING}
_COUNTED = {  # columns of the table of duplicates, and their keys in the metrics
    "documents": "documents",
    "repeat another's text": "exact",
    "near duplicates": "near",
    "in clusters": "clusters",
    "skipped": "left_out",
    "% of held-out 13-grams in training text": "runs_in_train",
    "% of held-out characters in such": "characters_in_train",
}


def duplicates_table(data: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return the head and the rows of a table of {source: duplicate counts, and shares of held-out text}."""

    def cell(head: str, number: Any) -> str:
        return f"{100 * number:.2f}" if head.startswith("%") else f"{number:,}"

    rows = [[name, *(cell(head, row[key]) for head, key in _COUNTED.items())] for name, row in data.items()]
    return [["source", *_COUNTED], *rows]


def tables_of(card: Sequence[Sequence[str]], scores: Mapping[str, Any]) -> dict[str, Sequence[Sequence[str]]]:
    """Return the tables of the report by title, each a header and rows; tables without rows are omitted."""
    leak = read_metrics(layout.LEAK)
    tables: dict[str, Sequence[Sequence[str]]] = {
        "Validation sets": [HEAD, *score_rows(scores)],
        "Report card": card,
        "Duplicates": duplicates_table(read_metrics(layout.DATA)),
        "Private text that the models tell": [LEAKED, *leak_rows(leak["sources"])],
        "Canaries in a copy of the run": [CANARY_HEAD, *canary_rows(leak["canaries"])],
    }
    return {title: table for title, table in tables.items() if table[1:]}


def main(stage: Stage) -> None:
    """Write the page."""
    params, mix, leaks = stage.params, read_meta(layout.MIX), read_metrics(layout.LEAK)["sources"]
    evaluated = read_meta(layout.EVALUATED, required=["card", "flops_per_token", "samples"])
    scores = read_metrics(layout.SCORES)
    final, card = list(scores.pop(layout.CARD).items())[-1]
    trained = [name for name, folder in layout.MODEL_OF.items() if folder.name in scores]
    curves = {name: [read_tsv(layout.METRICS / f"{name}{end}.tsv") for end in ("", "_val")] for name in trained}
    trainings = [Training(name, read_metrics(layout.METRICS / f"{name}.json"), *curves[name]) for name in trained]
    tokens = {name: source["train"]["tokens"] for name, source in mix["sources"].items()}
    seen = exposures(params.p_train, tokens, drawn=params.train.total_steps * params.train.B * params.model.T)
    most = most_epochs(trainings[0].summary["parameters"], in_epochs=params.train.windows == "epochs")
    page = render_report(
        verdict=[ability(card), *([f"Private text: {verdict(leaks, final)}"] if leaks else [])],
        cards=[finished_card(training, flops_per_token=evaluated["flops_per_token"]) for training in trainings],
        mix=mix,
        chat_mix=read_meta(layout.CHAT_MIX),
        seen=seen,
        notes=read_too_often(seen, most=most),
        samples=dict(sorted(evaluated["samples"].items(), key=lambda item: ("base" in item[0], item[0]))),
        params=params.model_dump(include=REPORTED if layout.TUNED.name in scores else REPORTED - TUNING),
        tables=tables_of(evaluated["card"], scores),
    )
    stage.out(layout.REPORT).write_text(page, encoding="utf-8")
    stage.say(f"{', '.join(name for name in scores if name not in layout.YARDSTICKS)} -> {layout.REPORT}")


if __name__ == "__main__":
    run_stage("report", main)
