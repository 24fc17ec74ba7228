"""Stage `eval`: score each validation set in nats/token and bits per byte; report card and samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from niels_gpt.cache.sft_dataset import open_chats
from niels_gpt.cache.windows import check_lengths, open_mix
from niels_gpt.duplicates.quoted import quoted_chats, quoted_stream
from niels_gpt.eval.card import OPENINGS, Card, blind_card, card_rows, human_card, measure_card
from niels_gpt.eval.chats import score_chats
from niels_gpt.eval.generations import Sampler, Text, held_out_replies, held_out_texts
from niels_gpt.eval.held_out import Score, score_stream
from niels_gpt.eval.settings import EvalRules
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import read_meta
from niels_gpt.inference.sampling import Sampling
from niels_gpt.model.size import flops_per_token
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, final_models, run_stage
from niels_gpt.pipeline.stores import open_models, token_places
from niels_gpt.pipeline.trial import stage_device
from niels_gpt.report.tables import format_samples, score_rows
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.tokenizer.pretrained import renderer_for

REPLIES = 64  # held-out replies that generated answers are compared with


def main(stage: Stage) -> None:
    """Score the final models, measure their report cards, and sample from them."""
    settings: EvalRules = stage.params.eval
    runtime = stage.params.runtime
    device = stage_device(runtime, say=stage.say)
    tokenizer = load_tokenizer(layout.TOKENIZER)
    files = {name: folder / layout.BEST for name, folder in final_models().items()}
    models = open_models(files, device, V=tokenizer.vocab_size)
    base, pretrained, tuned = (models.get(f.name) for f in (layout.BASE, layout.PRETRAINED, layout.TUNED))
    assert pretrained is not None, "final_models has it"
    T = pretrained.cfg.T
    mix = open_mix(layout.MIX, places=token_places(stage.params), documents=stage.params.train.document_mask)
    streams = {mix.val_names[name]: stream for name, stream in mix.val.items()}
    check_lengths({"val": streams}, T=T)

    how: dict[str, Any] = {"token_bytes": tokenizer.token_bytes(), "B": settings.B, "max_tokens": settings.max_tokens}
    spans = read_meta(layout.QUOTES, required=[*mix.val, *stage.params.chats])
    tables: dict[str, dict[str, Score]] = {model_name: {} for model_name in models}
    counts: dict[str, dict[str, int]] = {}
    for source, name in mix.val_names.items():
        quoted, counts[name] = quoted_stream(mix.val[source], spans[source], tokenizer)
        for model_name, model in models.items():
            scored = score_stream(model, streams[name], T=T, device=device, quoted=quoted, **how)
            tables[model_name][name] = scored
    replies: list[Text] = []
    # A base knows its chat format before any fine-tuning, so all models are scored: how much of it is forgotten?
    answering = list(models) if base else [layout.TUNED.name] if tuned else []
    if answering and stage.params.chats:
        chats = open_chats(layout.CHAT_MIX, names=list(stage.params.chats), T=T, device=device, root=Path())
        for name, examples in chats.val.items():
            marks, counts[chats.val_names[name]] = quoted_chats(examples, spans[name], tokenizer)
            for model_name in answering:
                scored = score_chats(models[model_name], examples, quoted=marks, **how)
                tables[model_name][chats.val_names[name]] = scored
        if tuned:
            replies = held_out_replies(chats.val, tokenizer, weights=stage.params.p_sft, at_most=REPLIES)
    scores = {
        model: {name: score.stats(counts[name]) for name, score in table.items()} for model, table in tables.items()
    }
    asked: dict[str, Any] = {"replies": replies, "T": T, "B": settings.B}
    cards: dict[str, Card] = {
        name: measure_card(model, tokenizer, renderer=renderer_for(tokenizer, chats=name == layout.TUNED.name), **asked)
        for name, model in models.items()
    }
    values = {model: {name: measured.value for name, measured in card.items()} for model, card in cards.items()}
    write_json(stage.out(layout.SCORES), {**scores, layout.CARD: values})

    sampling = Sampling(settings.temperature, settings.top_k)
    sampler = Sampler(tokenizer, sampling, max_new_tokens=settings.max_new_tokens, seed=settings.seed)
    samples = {"The base goes on": sampler.texts(base, settings.prompts)} if base else {}
    if base and renderer_for(tokenizer, chats=False) == "chatml":
        samples["The base answers"] = sampler.replies(base, settings.questions)
    samples["The pretrained model goes on"] = sampler.texts(pretrained, settings.prompts)
    if tuned:
        samples["The fine-tuned model answers"] = sampler.replies(tuned, settings.questions)
    stage.out(layout.SAMPLES).write_text(format_samples(samples), encoding="utf-8")
    people = human_card(held_out_texts(list(streams.values()), tokenizer, n=len(OPENINGS)), replies)
    card = card_rows(cards, blind=blind_card(tokenizer), people=people)
    flops = flops_per_token(pretrained, T=T)
    write_json(stage.out(layout.EVALUATED), {"card": card, "flops_per_token": flops, "samples": samples})
    for row in score_rows(scores):
        stage.say(f"{row.model} {row.held_out}: {row.nats} nats/token, {row.bits} bits per byte")


if __name__ == "__main__":
    run_stage("eval", main)
