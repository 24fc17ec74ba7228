"""eval: every held-out stream apart, in nats a token and bits a byte, and what the models say."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.cache.chat_manifest import open_chats
from niels_gpt.cache.manifest import open_mix
from niels_gpt.cache.meta import read_meta
from niels_gpt.cache.windows import check_lengths
from niels_gpt.checkpoint import load_model
from niels_gpt.device import prepare_device
from niels_gpt.eval.chats import generate_reply, score_chats
from niels_gpt.eval.held_out import Score, score_stream
from niels_gpt.files.atomic import write_json
from niels_gpt.generate import Sampling, generate
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.report.page import Training, render_report
from niels_gpt.report.samples import format_samples
from niels_gpt.report.scores import score_rows
from niels_gpt.report.tsv import read_tsv
from niels_gpt.rng import derive_seed, make_generator
from niels_gpt.tokenizer import load_tokenizer

REPORTED = {"model", "tokenizer", "p_train", "p_val", "p_sft", "train", "sft"}


def read_training(name: str) -> Training:
    curves = (read_tsv(layout.METRICS / f"{file}.tsv") for file in (name, f"{name}_val"))
    return Training(name, read_meta(layout.METRICS / f"{name}.json"), *curves)


def main(stage: Stage) -> None:
    settings, runtime = stage.params.eval, stage.params.runtime
    device = prepare_device(runtime.device, threads=runtime.threads)
    tokenizer = load_tokenizer(layout.TOKENIZER)
    pretrained, tuned = (load_model(folder / layout.BEST, device) for folder in (layout.PRETRAINED, layout.TUNED))
    T = pretrained.cfg.T
    mix = open_mix(layout.MIX, root=Path(), documents=stage.params.train.document_mask)
    chats = open_chats(layout.CHAT_MIX, names=list(stage.params.chats), T=T, device=device, root=Path())
    streams = {mix.val_names[name]: stream for name, stream in mix.val.items()}
    check_lengths({"val": streams}, T=T)
    token_bytes, B, limit = tokenizer.token_bytes(), settings.B, settings.max_tokens

    def score_texts(model: GPT) -> dict[str, Score]:
        return {
            name: score_stream(model, stream, token_bytes=token_bytes, T=T, B=B, device=device, max_tokens=limit)
            for name, stream in streams.items()
        }

    answers = {
        chats.val_names[name]: score_chats(tuned, examples, token_bytes=token_bytes, B=B, max_tokens=limit)
        for name, examples in chats.val.items()
    }
    tables = {"pretrain": score_texts(pretrained), "sft": {**score_texts(tuned), **answers}}
    scores = {model: {name: vars(score) for name, score in table.items()} for model, table in tables.items()}
    write_json(stage.out(layout.SCORES), scores)

    written, said = [], []
    for i, prompt in enumerate(settings.prompts):
        text = generate(
            pretrained,
            prompt,
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            top_k=settings.top_k,
            tokenizer=tokenizer,
            generator=make_generator(derive_seed(settings.seed, "sample", i)),
        )
        written.append((prompt, text))
    for i, question in enumerate(settings.questions):
        reply = generate_reply(
            tuned,
            [{"role": "user", "content": question}],
            tokenizer,
            max_new_tokens=settings.max_new_tokens,
            sampling=Sampling(settings.temperature, settings.top_k),
            generator=make_generator(derive_seed(settings.seed, "reply", i)),
        )
        said.append((question, reply))
    samples = {"The pretrained model goes on": written, "The fine-tuned model answers": said}
    stage.out(layout.SAMPLES).write_text(format_samples(samples), encoding="utf-8")
    report = render_report(
        trainings=[read_training(name) for name in ("train", "sft")],
        mix=read_meta(layout.MIX),
        chat_mix=read_meta(layout.CHAT_MIX),
        scores=scores,
        samples=samples,
        params=stage.params.model_dump(include=REPORTED),
    )
    stage.out(layout.REPORT).write_text(report, encoding="utf-8")
    for row in score_rows(scores):
        stage.say(f"{row.model} {row.held_out}: {row.nats} nats a token, {row.bits} bits a byte")


if __name__ == "__main__":
    run_stage("eval", main)
