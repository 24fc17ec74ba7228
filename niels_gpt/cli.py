"""niels-gpt: what a person does with the pipeline beside `dvc repro`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from niels_gpt.atomic import atomic_path

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="A small GPT from your own text, every byte of it accounted for."
)

PRESETS = Path("presets")
PARAMS = Path("params.yaml")


@app.callback()
def _group() -> None:
    """Keeps `niels-gpt COMMAND` a group however many commands there are."""


@app.command()
def preset(name: Annotated[str, typer.Argument(help="a file in presets/, without .yaml: sample, v0")]) -> None:
    """Write a preset's values into params.yaml. Your comments stay where they are."""
    from niels_gpt.presets import apply_preset

    chosen = PRESETS / f"{name}.yaml"
    if not chosen.is_file():
        known = (
            ", ".join(sorted(path.stem for path in PRESETS.glob("*.yaml"))) or "none: run this in the project's folder"
        )
        raise typer.BadParameter(f"there is no preset {name!r}; there are: {known}")
    current = PARAMS.read_text(encoding="utf-8") if PARAMS.is_file() else ""
    with atomic_path(PARAMS) as temporary:
        temporary.write_text(apply_preset(current, chosen.read_text(encoding="utf-8")), encoding="utf-8")
    typer.echo(f"{PARAMS} now holds {chosen}; `dvc params diff` shows what changed, `dvc repro` runs it")


tokenizer_app = typer.Typer(no_args_is_help=True, help="Look at the tokenizer.")
app.add_typer(tokenizer_app, name="tokenizer")


@tokenizer_app.callback()
def _tokenizer_group() -> None:
    """Keeps `niels-gpt tokenizer COMMAND` a group."""


@tokenizer_app.command()
def report(
    line: Annotated[
        str, typer.Option(help="a line to show cut into tokens")
    ] = "niels bakes rye bread, 3.5 kg of it 🥖",
) -> None:
    """Bytes a token by source, how much of the vocabulary is used, the longest pieces, and how a line is cut."""
    from niels_gpt.cache.mmap import open_tokens
    from niels_gpt.tokenizer import load_tokenizer
    from niels_gpt.tokenizer_report import format_report, report_source

    files = sorted(Path("cache/tokens").glob("*/train_tokens.bin"))
    if not files:
        typer.echo("ERROR: there are no tokens yet: run `dvc repro mix` first", err=True)
        raise typer.Exit(1)
    chosen = load_tokenizer("cache/tokenizer")
    sources = {path.parent.name: report_source(chosen, open_tokens(path)) for path in files}
    typer.echo(format_report(chosen, sources, line=line))


inspect_app = typer.Typer(no_args_is_help=True, help="Look at what the model is trained on.")
app.add_typer(inspect_app, name="inspect")


@inspect_app.callback()
def _inspect_group() -> None:
    """Keeps `niels-gpt inspect COMMAND` a group."""


@inspect_app.command("sft")
def inspect_sft(
    n: Annotated[int, typer.Option(help="how many chats of each source")] = 3,
    color: Annotated[bool, typer.Option(help="colour what is learned; without it, it stands in «»")] = True,
) -> None:
    """Chats as the model sees them, cut at T, with the tokens it is trained to say marked."""
    import numpy as np

    from niels_gpt.cache.manifest import open_chats
    from niels_gpt.cache.meta import read_meta
    from niels_gpt.chat_inspection import mark_chat
    from niels_gpt.loss import IGNORE_INDEX
    from niels_gpt.tokenizer import load_tokenizer

    config, mix = Path("models/pretrain/config.json"), Path("cache/chat_mix.json")
    if not config.is_file() or not mix.is_file():
        typer.echo("ERROR: there are no chats and no model yet: run `dvc repro train mix` first", err=True)
        raise typer.Exit(1)
    tokenizer = load_tokenizer("cache/tokenizer")
    names = list(read_meta(mix)["sources"])
    chats = open_chats(mix, names=names, T=read_meta(config)["T"], device="cpu", root=Path())
    for name, examples in chats.train.items():
        for row in range(min(n, len(examples))):
            x, y, masked = (tensor[0].tolist() for tensor in examples.examples(np.array([row])))
            learned = [False, *(target != IGNORE_INDEX for target in masked)]
            typer.echo(f"--- {name} {row}\n{mark_chat(tokenizer, [x[0], *y], learned, color=color)}\n")


@app.command()
def summary() -> None:
    """The last evaluation, a sample, and where everything lies."""
    missing = [
        path for path in ("metrics/eval.json", "metrics/train.json", "metrics/samples.md") if not Path(path).is_file()
    ]
    if missing:
        typer.echo(f"ERROR: {', '.join(missing)} not there yet: run `dvc repro` first", err=True)
        raise typer.Exit(1)
    scores: dict[str, Any] = json.loads(Path("metrics/eval.json").read_text(encoding="utf-8"))
    trained: dict[str, Any] = json.loads(Path("metrics/train.json").read_text(encoding="utf-8"))
    typer.echo(f"\n{'model':<10}{'held out':<12}{'nats/token':>12}{'bits/byte':>12}{'tokens':>12}")
    for model, table in scores.items():
        for stream, score in table.items():
            numbers = f"{score['nats']:>12.4f}{score['bits_per_byte']:>12.4f}{score['tokens']:>12,}"
            typer.echo(f"{model:<10}{stream:<12}{numbers}")
    mix = ", ".join(f"{source} {share['drawn']:.3f}" for source, share in trained["mix"].items())
    typer.echo(f"\n{trained['parameters']:,} parameters, {trained['tokens']:,} tokens seen, drawn from {mix}")
    last = Path("metrics/samples.md").read_text(encoding="utf-8").split("\n## ")[-1]
    question, answer = last.split("\n", 1)
    typer.echo(f"\nAsked: {question}\n\n{answer.strip()}\n")
    for what, where in (
        ("models", "models/pretrain/ and models/sft/ (best.pt, last.pt, config.json)"),
        ("metrics", "metrics/train.json, sft.json, eval.json, and curves in metrics/*.tsv"),
        ("samples", "metrics/samples.md"),
        ("tokens", "cache/pretrain/ and cache/sft/, listed with their sha256 in cache/mix.json and chat_mix.json"),
        ("run logs", "logs/*.jsonl (times and speed, not tracked)"),
    ):
        typer.echo(f"{what:<9}{where}")
