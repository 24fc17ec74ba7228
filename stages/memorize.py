"""Stage `memorize`: measure the extraction probability P(z) of the chosen documents before and after `splice`."""

import numpy as np

from niels_gpt.files.checks import described_by, read_meta
from niels_gpt.leak.memorized import (
    DocumentResult,
    document_log_pz,
    document_stats,
    highest_by_token,
    pz_stats,
    render_page,
    render_strips,
    token_log_probs,
)
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.results import write_metrics
from niels_gpt.pipeline.stage import Stage, leave_out, run_stage
from niels_gpt.pipeline.stores import open_documents, open_model
from niels_gpt.pipeline.trial import stage_device
from niels_gpt.report.tables import write_tsv
from niels_gpt.tokenizer import load_tokenizer
from stages.curves import write_curves


def chosen_documents(params: Params, *, at_least: int) -> dict[str, np.ndarray]:
    """Return the tokens of the documents that the splice stage trained on, by name; check their length in tokens."""
    path = layout.SPLICED / layout.CHOSEN
    chosen = read_meta(path)
    with described_by(path):
        store = open_documents(params, chosen["dataset_name"])
        documents = {f"doc{row}": store.document(row) for row in chosen["rows"]}
    for name, tokens in documents.items():
        if len(tokens) < at_least:
            raise ValueError(
                f"{name} has {len(tokens)} tokens, fewer than a window: raise splice.min_doc_length, or lower "
                f"memorize.chunk_size, which is {at_least}"
            )
    return documents


def main(stage: Stage) -> None:
    """Write the learning curves of `splice`; measure P(z) for windows of each document, and write what was found."""
    settings = stage.params.memorize
    write_curves(stage, "splice")
    if not settings.run:
        pages = layout.MEMORIZED, layout.MEMORIZED_PAGE, layout.MEMORIZED_STRIPS
        leave_out(stage, *pages, layout.EXTRACTION)
        return
    device = stage_device(stage)
    tokenizer = load_tokenizer(layout.TOKENIZER)
    files = {"before": layout.PRETRAINED / layout.BEST, "after": layout.SPLICED / layout.LAST}
    models = {name: open_model(file, device) for name, file in files.items()}
    documents = chosen_documents(stage.params, at_least=settings.chunk_size)
    curves, found, results = stage.out(layout.EXTRACTION), [], []
    curves.mkdir()
    logs: dict[str, list[np.ndarray]] = {when: [] for when in models}
    for name, tokens in documents.items():
        stats, columns = {}, dict[str, np.ndarray]()
        for when, model in models.items():
            starts, values = document_log_pz(model, tokens, settings)
            logs[when].append(values)
            stats[when] = document_stats(starts, values, settings, L=len(tokens))
            columns["start"], columns[f"pz_{when}"] = starts, np.exp(values)
        found.append({"name": name, **stats})
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        write_tsv(curves / f"{name}.tsv", [dict(zip(columns, row, strict=True)) for row in rows])
        highest = highest_by_token(columns["pz_after"], columns["start"], settings, L=len(tokens))
        results.append(DocumentResult(name, tokens, highest, *token_log_probs(models["after"], tokens)))
    together = {when: pz_stats(np.concatenate(values)) for when, values in logs.items()}
    distribution = "full softmax" if settings.top_k is None else f"top {settings.top_k}"
    facts = {"distribution": distribution, "documents": found, "together": together}
    write_metrics(stage.out(layout.MEMORIZED), facts, pz=together["after"]["median_pz"])
    page = render_page(results, tokenizer, settings)
    stage.out(layout.MEMORIZED_PAGE).write_text(page, encoding="utf-8")
    stage.out(layout.MEMORIZED_STRIPS).write_text(
        render_strips({result.name: result.pz for result in results}), encoding="utf-8"
    )
    for when, stats in together.items():
        stage.say(
            f"{when}: median P(z) {stats['median_pz']:.3g}, mean {stats['mean_pz']:.3g}, {stats['num_windows']} windows"
        )


if __name__ == "__main__":
    run_stage("memorize", main)
