"""Stage `leak`: measure what can be extracted of private sources; the numbers are public, the text is not."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from niels_gpt.data.corpus.split_files import document_names
from niels_gpt.files.checks import sha256_file
from niels_gpt.leak.extraction import Questions
from niels_gpt.leak.measure import Leak, distinct_passages, measure_leak
from niels_gpt.leak.page import canary_sentence, extractable, leak_sentence, render_leak, verdict
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.private_text import measure_planted_run, open_sources
from niels_gpt.pipeline.results import final_models, write_metrics
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.stores import open_library, open_model, open_source
from niels_gpt.pipeline.trial import stage_device
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.train.meter import token_progress

# Tokens in forward passes of all sources and models, as a share of the tokens that pretraining read. A token costs
# three times as much in training, so this is a 15th of its FLOPs. It is no stopwatch: equal inputs give equal results.
_SHARE_OF_TRAINING = 0.2
_LEAST_TOKENS = 8192  # also after a training of a few steps, so that something is asked for
_FOR_PASSAGES = 0.5  # of these; the others are for sentences and sampled texts


def main(stage: Stage) -> None:
    """Measure the leakage of each private source in each final model, and of planted canaries."""
    params, settings = stage.params, stage.params.leak
    device = stage_device(stage)
    tokenizer = load_tokenizer(layout.TOKENIZER)
    files = {name: folder / layout.BEST for name, folder in final_models().items()}
    models = {name: open_model(file, device) for name, file in files.items()}
    window = {"chunk_size": settings.chunk_size, "prompt_tokens": settings.prompt_tokens}
    # A GPU idles between small batches: as many passages as give 1 GiB of logits.
    B = settings.B if device == "cpu" else max(settings.B, 2**28 // (tokenizer.vocab_size * settings.chunk_size))
    how: dict[str, Any] = {"end_of_text": tokenizer.special_token_ids()["eot"], "B": B, "seed": settings.seed}
    T = next(iter(models.values())).cfg.T
    found: dict[str, dict[str, Leak]] = {}
    budget = max(_LEAST_TOKENS, int(_SHARE_OF_TRAINING * params.train.total_steps * params.train.B * T))
    private = open_sources(params, T=T, private=True)
    each = budget / (len(models) * max(1, len(private)))
    # Half of the passages are of training documents, half of held-out ones.
    most = max(1, int(_FOR_PASSAGES * each / settings.chunk_size / 2))
    at_most = min(most, settings.max_passages or most)
    public = [train for train, _ in open_sources(params, T=T, private=False).values()]
    for source, (train, held_out) in private.items():
        stage.say(f"choosing sentences and passages of {source}")
        passages = distinct_passages(train, held_out, **window, at_most=at_most, seed=settings.seed)
        questions = Questions.of(train, held_out, public, tokenizer, at_most_tokens=int((1 - _FOR_PASSAGES) * each))
        tokens = len(models) * (sum(side.tokens.size for side in passages) + questions.tokens)
        with token_progress(models.values(), total=tokens, title=stage.title):
            found[source] = {name: measure_leak(model, passages, questions, **how) for name, model in models.items()}
    stats = {source: {name: leak.stats() for name, leak in leaks.items()} for source, leaks in found.items()}
    for source, by_model in stats.items():
        for name, told in by_model.items():
            stage.say(f"{source}, {name}: {leak_sentence(told)}")
    for name in models:
        stage.say(f"{name}: {verdict(stats, name)}")
    measured = {name: sha256_file(file) for name, file in files.items()}
    planted = measure_planted_run(stage) if settings.canaries else None
    if planted:
        stage.say(canary_sentence(planted))
    result = {**window, "budget_tokens": budget, "measured": measured, "sources": stats, "canaries": planted}
    leaks = extractable(stats, without=layout.BASE.name) if stats else None
    write_metrics(stage.out(layout.LEAK), result, leaks=leaks)
    names = {source: document_names(*open_source(params, source))["train"] for source in found}
    library = open_library(params, in_files=False)

    def links(text: str) -> Iterator[tuple[str, str]]:
        for place in (place for span in library.trace(text)[:1] for place in span.places):
            source = Path(params.sources[place.source].input)
            file = source if source.is_file() else source / place.file
            yield quote(os.path.relpath(file, layout.LEAK_PAGE.parent)), f"{place.file}:{place.line}"

    page = render_leak(found, names, tokenizer.decode, links, budget=budget)
    stage.out(layout.LEAK_PAGE).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    run_stage("leak", main)
