"""leak: what the final models tell of private sources. The numbers are public, the passages are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from niels_gpt.cache.chat_manifest import open_chats
from niels_gpt.data.parts import open_texts
from niels_gpt.data.splits import document_names, read_split
from niels_gpt.device import prepare_device
from niels_gpt.eval.leak import Leak, Subject, measure_leak
from niels_gpt.eval.passages import Documents
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checksums import sha256_file
from niels_gpt.files.descriptions import described_by, read_meta
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.left_out import final_models
from niels_gpt.pipeline.models import open_models
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.places import store_of, token_places
from niels_gpt.pipeline.planted_run import measure_planted_run
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.report.leak import canary_sentence, leak_rows, leak_sentence, render_leak
from niels_gpt.splice.documents import TokenStore
from niels_gpt.tokenizer import load_tokenizer


def private_documents(params: Params, *, T: int) -> dict[str, tuple[Documents, Documents]]:
    """By source: those trained on, and those held out. A chat is a document, too."""
    private = [name for name, source in params.chats.items() if source.private]
    chats = open_chats(layout.CHAT_MIX, names=private, T=T, device="cpu", root=Path())
    mix, places = read_meta(layout.MIX), token_places(params)
    texts: dict[str, tuple[Documents, Documents]] = {}
    for name in (name for name, source in params.sources.items() if source.private):
        with described_by(layout.MIX):
            manifest = {**mix["sources"][name], "vocab_size": mix["vocab_size"]}
            train, held_out = (TokenStore(name, manifest, places=places, split=split) for split in ("train", "val"))
        texts[name] = train, held_out
    return {**texts, **{name: (chats.train[name], chats.val[name]) for name in private}}


def trained_names(params: Params, source: str) -> list[str]:
    texts = open_texts(layout.RAW / source, stored=store_of(params, source))
    folder = (layout.CHAT_SPLIT if source in params.chats else layout.SPLIT) / source
    return document_names(texts, read_split(folder, texts))["train"]


def main(stage: Stage) -> None:
    params, settings = stage.params, stage.params.leak
    device = prepare_device(params.runtime.device, threads=params.runtime.threads)
    tokenizer = load_tokenizer(layout.TOKENIZER)
    files = {name: folder / layout.BEST for name, folder in final_models().items()}
    models = open_models(files, device, V=tokenizer.vocab_size)
    window = {"chunk_size": settings.chunk_size, "prompt_tokens": settings.prompt_tokens}
    how: dict[str, Any] = {"end_of_text": tokenizer.special_token_ids()["eot"], "B": settings.B, "seed": settings.seed}
    T = next(iter(models.values())).cfg.T
    found: dict[str, dict[str, Leak]] = {}
    for source, (train, held_out) in private_documents(params, T=T).items():
        subject = Subject.of(train, held_out, **window, at_most=settings.max_passages, seed=settings.seed)
        found[source] = {name: measure_leak(model, subject, **how) for name, model in models.items()}
    stats = {source: {name: leak.stats() for name, leak in leaks.items()} for source, leaks in found.items()}
    for source, by_model in stats.items():
        for name, told in by_model.items():
            stage.say(f"{source}, {name}: {leak_sentence(told)}")
    measured = {name: sha256_file(file) for name, file in files.items()}
    planted = measure_planted_run(stage) if settings.canaries else None
    if planted:
        stage.say(canary_sentence(planted))
    write_json(stage.out(layout.LEAK), {**window, "measured": measured, "sources": stats, "canaries": planted})
    names = {source: trained_names(params, source) for source in found}
    stage.out(layout.LEAK_PAGE).write_text(
        render_leak(found, names, tokenizer, rows=leak_rows(stats)), encoding="utf-8"
    )


if __name__ == "__main__":
    run_stage("leak", main)
