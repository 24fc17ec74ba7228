"""Stage `eval`: score each validation set in nats/token and bits per byte; report card, samples, curves of `sft`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from niels_gpt.cache.sft_dataset import SFTExampleDataset, open_chats
from niels_gpt.cache.windows import Mix, check_lengths, open_mix
from niels_gpt.duplicates.quoted import quoted_chats, quoted_stream
from niels_gpt.eval import EvalRules
from niels_gpt.eval.ability import measured_ability
from niels_gpt.eval.card import Card, blind_card, card_rows, human_card, measure_card, probe_texts
from niels_gpt.eval.chats import score_chats
from niels_gpt.eval.generations import Text, held_out_replies, held_out_texts, known_words, sample_texts
from niels_gpt.eval.held_out import YARDSTICKS, Score, score_stream, yardstick_bits
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import read_meta
from niels_gpt.model.gpt import GPT
from niels_gpt.model.size import flops_per_token
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.results import final_models, write_metrics
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.stores import open_model, token_places
from niels_gpt.pipeline.trial import stage_device
from niels_gpt.report.tables import format_samples, score_rows
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.tokenizer.pretrained import renderer_for
from niels_gpt.tokenizer.vocabulary import Tokenizer
from niels_gpt.train.meter import token_progress
from stages.curves import write_curves

REPLIES = 64  # held-out replies that generated answers are compared with
_CARD_TOKENS = 8000  # that a report card takes, about


def main(stage: Stage) -> None:
    """Write the learning curves of `sft`; evaluate the final models, with progress."""
    write_curves(stage, "sft")
    device = stage_device(stage)
    tokenizer = load_tokenizer(layout.TOKENIZER)
    files = {name: folder / layout.BEST for name, folder in final_models().items()}
    models = {name: open_model(file, device) for name, file in files.items()}
    # A base knows its chat format before any fine-tuning, so beside it all are scored: how much of it is forgotten?
    answering = list(models) if layout.BASE.name in models else [name for name in models if name == layout.TUNED.name]
    names, T = list(stage.params.chats) if answering else [], models[layout.PRETRAINED.name].cfg.T
    chats = open_chats(layout.CHAT_MIX, names=names, T=T, device=device)
    total = tokens_to_read(stage, chats, T=T, models=len(models), answering=len(answering))
    with token_progress(models.values(), total=total, title=stage.title):
        evaluate(stage, models, tokenizer, chats, answering, device=device)


def tokens_to_read(stage: Stage, chats: Mix[SFTExampleDataset], *, T: int, models: int, answering: int) -> int:
    """Return about how many tokens all models together read, of which as many as `answering` are scored on chats."""
    settings = stage.params.eval
    most, n = settings.max_tokens or math.inf, settings.max_new_tokens
    texts = read_meta(layout.MIX, required=["sources.*.val.tokens"])["sources"].values()
    read = models * sum(min(most, source["val"]["tokens"]) for source in texts)
    # For chats, `most` counts the tokens of answers, about half of all.
    read += answering * sum(min(2 * most, int(of.lengths.sum())) for of in chats.val.values())
    samples = models * len(settings.prompts) + answering * len(settings.questions)
    written = samples * (n + T * max(0, n - T))  # a token beyond the context needs T of them read again
    return int(read + models * _CARD_TOKENS + written)


def evaluate(
    stage: Stage,
    models: dict[str, GPT],
    tokenizer: Tokenizer,
    chats: Mix[SFTExampleDataset],
    answering: Sequence[str],
    *,
    device: str,
) -> None:
    """Score models, measure their report cards, and sample from them."""
    settings: EvalRules = stage.params.eval
    pretrained, tuned = (models.get(folder.name) for folder in (layout.PRETRAINED, layout.TUNED))
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
            tables[model_name][name] = score_stream(model, streams[name], T=T, device=device, quoted=quoted, **how)
    replies: list[Text] = []
    known = dict.fromkeys(models, known_words((stream.arrays for stream in mix.train.values()), tokenizer))
    for source, name in chats.val_names.items():
        marks, counts[name] = quoted_chats(chats.val[source], spans[source], tokenizer)
        for model_name in answering:
            tables[model_name][name] = score_chats(models[model_name], chats.val[source], quoted=marks, **how)
    if tuned:
        read = (chats.train[name] for name, weight in stage.params.p_sft.items() if weight)
        known[layout.TUNED.name] = known[layout.TUNED.name] | known_words(
            (map(of.whole, range(len(of))) for of in read), tokenizer
        )
        replies = held_out_replies(chats.val, tokenizer, weights=stage.params.p_sft, at_most=REPLIES)
    scores = {
        model: {name: score.stats(counts[name]) for name, score in table.items()} for model, table in tables.items()
    }
    bits = {
        name: yardstick_bits(stream, piece=tokenizer.piece, T=T, max_tokens=settings.max_tokens)
        for name, stream in streams.items()
    }
    scores |= {how: {name: {"bits_per_byte": found[how]} for name, found in bits.items()} for how in YARDSTICKS}
    cards: dict[str, Card] = {}
    for name, model in models.items():
        renderer = renderer_for(tokenizer, chats=name == layout.TUNED.name)
        asked: dict[str, Any] = {"renderer": renderer, "known": known[name], "replies": replies}
        cards[name] = measure_card(model, tokenizer, T=T, B=settings.B, **asked)
    values = {model: {name: measured.value for name, measured in card.items()} for model, card in cards.items()}
    final, chat_names = cards[list(cards)[-1]], set(counts) - set(streams)
    write_metrics(
        stage.out(layout.SCORES),
        {**scores, layout.CARD: values},
        text_bits=bits_together([tables[layout.PRETRAINED.name][name] for name in streams]),
        chat_bits=bits_together([score for name, score in tables[list(tables)[-1]].items() if name in chat_names]),
        spelling=final["spelling"].value,
        form=final["form"].value,
    )

    samples = samples_of(models, tokenizer, settings)
    stage.out(layout.SAMPLES).write_text(format_samples(samples), encoding="utf-8")
    texts = held_out_texts(list(streams.values()), tokenizer, n=len(probe_texts("opening")))
    people = human_card(texts, replies, known=known[layout.PRETRAINED.name])
    card = card_rows(cards, blind=blind_card(tokenizer), people=people)
    flops = flops_per_token(pretrained, T=T)
    write_json(stage.out(layout.EVALUATED), {"card": card, "flops_per_token": flops, "samples": samples})
    for name, held_out, nats, bits_per_byte, _ in score_rows(scores):
        loss = "" if name in YARDSTICKS else f"{nats} nats/token, "
        stage.say(f"{name} {held_out}: {loss}{bits_per_byte} bits per byte")
    for name, own in values.items():
        stage.say(f"{name} {measured_ability(own).measured}")


def samples_of(models: Mapping[str, GPT], tokenizer: Tokenizer, rules: EvalRules) -> dict[str, list[tuple[str, str]]]:
    """Return (prompt, text) pairs by title, of each model."""
    base, tuned = models.get(layout.BASE.name), models.get(layout.TUNED.name)
    samples = {"The base continues": sample_texts(base, tokenizer, rules, chat=False)} if base else {}
    if base and renderer_for(tokenizer, chats=False) == "chatml":
        samples["The base answers"] = sample_texts(base, tokenizer, rules, chat=True)
    pretrained = models[layout.PRETRAINED.name]
    samples["The pretrained model continues"] = sample_texts(pretrained, tokenizer, rules, chat=False)
    if tuned:
        samples["The fine-tuned model answers"] = sample_texts(tuned, tokenizer, rules, chat=True)
    return samples


def bits_together(scores: Sequence[Score]) -> float | None:
    """Return the bits per byte of several validation sets as of one text; None if there is none."""
    bits = [score.nats * score.tokens / math.log(2) for score in scores]
    sizes = [size / score.bits_per_byte for size, score in zip(bits, scores, strict=True) if score.bits_per_byte]
    return sum(bits) / sum(sizes) if sizes else None


if __name__ == "__main__":
    run_stage("eval", main)
