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
    typer.echo(f"\n{'held out':<12}{'nats/token':>12}{'bits/byte':>12}{'tokens':>12}")
    for stream, score in scores.items():
        if isinstance(score, dict):
            typer.echo(f"{stream:<12}{score['nats']:>12.4f}{score['bits_per_byte']:>12.4f}{score['tokens']:>12,}")
    mix = ", ".join(f"{source} {share['drawn']:.3f}" for source, share in trained["mix"].items())
    typer.echo(f"\n{trained['parameters']:,} parameters, {trained['tokens']:,} tokens seen, drawn from {mix}")
    last = Path("metrics/samples.md").read_text(encoding="utf-8").split("\n## ")[-1]
    typer.echo(f"\nA sample:\n\n{last.split(chr(10), 1)[1].strip()}\n")
    for what, where in (
        ("model", "models/pretrain/ (best.pt, last.pt, config.json)"),
        ("metrics", "metrics/train.json, metrics/eval.json, and curves in metrics/*.tsv"),
        ("samples", "metrics/samples.md"),
        ("tokens", "cache/pretrain/, listed with their sha256 in cache/mix.json"),
        ("run log", "logs/train.jsonl (times and speed, not tracked)"),
    ):
        typer.echo(f"{what:<9}{where}")
