"""eval: every held-out stream apart, in nats a token and bits a byte, and what the model says."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.atomic import write_json
from niels_gpt.cache.manifest import open_mix
from niels_gpt.checkpoint import load_checkpoint
from niels_gpt.device import resolve_device
from niels_gpt.eval import score_stream
from niels_gpt.generate import generate
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import derive_seed, make_generator
from niels_gpt.samples import format_samples
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.windows import check_lengths
from stages.stage import Stage, run_stage


def main(stage: Stage) -> None:
    settings, device = stage.params.eval, resolve_device(stage.params.runtime.device)
    mix, tokenizer = open_mix("cache/mix.json", root=Path()), load_tokenizer("cache/tokenizer")
    config, weights, _, step = load_checkpoint("models/pretrain/best.pt", device)
    model = GPT(config).to(device)
    model.load_state_dict(weights)
    streams = {mix.val_names[name]: stream for name, stream in mix.val.items()}
    check_lengths({"val": streams}, T=model.cfg.T)

    scores = {
        name: vars(
            score_stream(
                model,
                stream,
                token_bytes=tokenizer.token_bytes(),
                T=model.cfg.T,
                B=settings.B,
                device=device,
                max_tokens=settings.max_tokens,
            )
        )
        for name, stream in streams.items()
    }
    write_json(stage.out("metrics/eval.json"), {"step": step, **scores})

    samples = [
        generate(
            model,
            prompt,
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            top_k=settings.top_k,
            tokenizer=tokenizer,
            generator=make_generator(derive_seed(settings.seed, "sample", i)),
        )
        for i, prompt in enumerate(settings.prompts)
    ]
    stage.out("metrics/samples.md").write_text(format_samples(settings.prompts, samples), encoding="utf-8")
    for name, score in scores.items():
        stage.say(f"{name}: {score['nats']:.4f} nats a token, {score['bits_per_byte']:.4f} bits a byte")


if __name__ == "__main__":
    run_stage("eval", main)
