"""memorize: how much of every chosen document the model knows by heart, P(z), before the splice stage and after."""

from __future__ import annotations

import numpy as np

from niels_gpt.cache.integrity import described_by
from niels_gpt.cache.meta import read_meta
from niels_gpt.checkpoint import load_model
from niels_gpt.device import prepare_device
from niels_gpt.eval.memorization import document_log_pz, pz_stats, token_coverage, token_log_probs
from niels_gpt.files.atomic import write_json
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.report.memorization import DocumentResult, render_page, render_strips
from niels_gpt.report.tsv import write_tsv
from niels_gpt.splice.documents import TokenStore
from niels_gpt.tokenizer import load_tokenizer


def chosen_documents() -> dict[str, np.ndarray]:
    """The documents that the splice stage trained on, by name."""
    path = layout.SPLICED / layout.CHOSEN
    chosen = read_meta(path)
    with described_by(path):
        store = TokenStore(layout.TOKENS / chosen["dataset_name"])
        return {f"doc{row}": store.document(row) for row in chosen["rows"]}


def main(stage: Stage) -> None:
    settings, runtime = stage.params.memorize, stage.params.runtime
    device = prepare_device(runtime.device, threads=runtime.threads)
    tokenizer = load_tokenizer(layout.TOKENIZER)
    models = {
        "before": load_model(layout.PRETRAINED / layout.BEST, device),
        "after": load_model(layout.SPLICED / layout.LAST, device),
    }
    chosen = chosen_documents()
    window = {"chunk_size": settings.chunk_size, "prompt_tokens": settings.prompt_tokens}
    documents: dict[str, dict[str, object]] = {}
    together: dict[str, list[np.ndarray]] = {"before": [], "after": []}
    results, curves = [], stage.out(layout.EXTRACTION)
    curves.mkdir()
    for name, tokens in chosen.items():
        if len(tokens) < settings.chunk_size:
            raise ValueError(
                f"{name} has {len(tokens)} tokens, fewer than a window: raise splice.min_doc_length, or lower "
                f"memorize.chunk_size, which is {settings.chunk_size}"
            )
        starts, logs = np.empty(0), {}
        for when, model in models.items():
            starts, logs[when] = document_log_pz(model, tokens, **settings.model_dump())
            together[when].append(logs[when])
        documents[name] = {
            when: {
                **pz_stats(values, starts, L=len(tokens)),
                "token_coverage": token_coverage(values, starts, L=len(tokens), **window),
            }
            for when, values in logs.items()
        }
        curve = zip(starts.tolist(), np.exp(logs["before"]), np.exp(logs["after"]), strict=True)
        write_tsv(curves / f"{name}.tsv", [{"start": t, "pz_before": b, "pz_after": a} for t, b, a in curve])
        probabilities, likeliest = token_log_probs(models["after"], tokens)
        results.append(DocumentResult(name, tokens, starts, np.exp(logs["after"]), probabilities, likeliest))
    joint = {when: pz_stats(np.concatenate(logs)) for when, logs in together.items()}
    distribution = "full softmax" if settings.top_k is None else f"top {settings.top_k}"
    write_json(
        stage.out(layout.MEMORIZED),
        {"distribution": distribution, "documents": documents, "together": joint},
    )
    stage.out(layout.MEMORIZED_PAGE).write_text(render_page(results, tokenizer, window=window), encoding="utf-8")
    stage.out(layout.MEMORIZED_STRIPS).write_text(render_strips(results, **window), encoding="utf-8")
    for when, stats in joint.items():
        stage.say(
            f"{when}: median P(z) {stats['median_pz']:.3g}, mean {stats['mean_pz']:.3g}, {stats['num_windows']} windows"
        )


if __name__ == "__main__":
    run_stage("memorize", main)
