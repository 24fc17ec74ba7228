"""eval: every held-out stream apart, in nats a token and bits a byte, and what the models say."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.cache.manifest import open_chats, open_mix
from niels_gpt.cache.meta import read_meta
from niels_gpt.cache.windows import check_lengths
from niels_gpt.checkpoint import load_model
from niels_gpt.device import prepare_device
from niels_gpt.eval.held_out import Score, score_chats, score_stream
from niels_gpt.files.atomic import write_json
from niels_gpt.files.tsv import read_tsv
from niels_gpt.generate import generate, generate_reply
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.report.page import Training, render_report
from niels_gpt.report.samples import format_samples
from niels_gpt.rng import derive_seed, make_generator
from niels_gpt.tokenizer import load_tokenizer

REPORTED = {"model", "tokenizer", "p_train", "p_val", "p_sft", "train", "sft"}


def read_training(name: str) -> Training:
    curves = (read_tsv(Path(f"metrics/{file}.tsv")) for file in (name, f"{name}_val"))
    return Training(name, read_meta(f"metrics/{name}.json"), *curves)


def main(stage: Stage) -> None:
    settings, runtime = stage.params.eval, stage.params.runtime
    device = prepare_device(runtime.device, threads=runtime.threads)
    tokenizer = load_tokenizer("cache/tokenizer")
    pretrained, tuned = (load_model(f"models/{name}/best.pt", device) for name in ("pretrain", "sft"))
    T = pretrained.cfg.T
    mix = open_mix("cache/mix.json", root=Path(), documents=stage.params.train.document_mask)
    chats = open_chats("cache/chat_mix.json", names=list(stage.params.chats), T=T, device=device, root=Path())
    streams = {mix.val_names[name]: stream for name, stream in mix.val.items()}
    check_lengths({"val": streams}, T=T)
    token_bytes, B, limit = tokenizer.token_bytes(), settings.B, settings.max_tokens

    def score_texts(model: GPT) -> dict[str, Score]:
        return {
            name: score_stream(model, stream, token_bytes=token_bytes, T=T, B=B, device=device, max_tokens=limit)
            for name, stream in streams.items()
        }

    answers = {
        chats.val_names[name]: score_chats(
            tuned, examples, token_bytes=token_bytes, B=B, device=device, max_tokens=limit
        )
        for name, examples in chats.val.items()
    }
    scores = {"pretrain": score_texts(pretrained), "sft": {**score_texts(tuned), **answers}}
    write_json(
        stage.out("metrics/eval.json"),
        {model: {name: vars(score) for name, score in table.items()} for model, table in scores.items()},
    )

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
            temperature=settings.temperature,
            top_k=settings.top_k,
            generator=make_generator(derive_seed(settings.seed, "reply", i)),
        )
        said.append((question, reply))
    samples = {"The pretrained model goes on": written, "The fine-tuned model answers": said}
    stage.out("metrics/samples.md").write_text(format_samples(samples), encoding="utf-8")
    report = render_report(
        trainings=[read_training(name) for name in ("train", "sft")],
        mix=read_meta("cache/mix.json"),
        chat_mix=read_meta("cache/chat_mix.json"),
        scores={model: {name: vars(score) for name, score in table.items()} for model, table in scores.items()},
        samples=samples,
        params=stage.params.model_dump(include=REPORTED),
    )
    stage.out("metrics/report.html").write_text(report, encoding="utf-8")
    for model, table in scores.items():
        for name, score in table.items():
            stage.say(f"{model} {name}: {score.nats:.4f} nats a token, {score.bits_per_byte:.4f} bits a byte")


if __name__ == "__main__":
    run_stage("eval", main)
