"""niels-gpt inspect and tokenizer: looking at what the model is trained on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import click
import typer

from niels_gpt.data.epochs import exposures, read_too_often
from niels_gpt.files.sentences import visible
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.console import one_sentence
from niels_gpt.pipeline.params import read_params
from niels_gpt.pipeline.results import read_result

tokenizer_app = typer.Typer(no_args_is_help=True, help="Look at the tokenizer.")


@tokenizer_app.command()
def report(
    line: Annotated[
        str, typer.Option(help="a line to show cut into tokens")
    ] = "niels bakes rye bread, 3.5 kg of it 🥖",
) -> None:
    """Bytes a token by source, how much of the vocabulary is used, the longest pieces, and how a line is cut."""
    from niels_gpt.cache.manifest import train_files
    from niels_gpt.pipeline.places import token_places
    from niels_gpt.tokenizer import load_tokenizer
    from niels_gpt.tokenizer.report import format_report, report_source

    with one_sentence():
        params, mix = read_params()[0], read_result(layout.MIX)
        chosen, places = load_tokenizer(layout.TOKENIZER), token_places(params)
        sources = {
            name: report_source(chosen, train_files(name, manifest, places=places))
            for name, manifest in mix["sources"].items()
        }
        typer.echo(format_report(chosen, sources, line=line))


app = typer.Typer(no_args_is_help=True, help="Look at what the model is trained on.")


@app.command("documents")
def inspect_documents(
    source: Annotated[str, typer.Argument(help="a source of params.yaml")],
    n: Annotated[int, typer.Option(min=1, help="how many")] = 5,
) -> None:
    """The first documents of a source as they were loaded: name, size, how they begin."""
    from niels_gpt.data.parts import MANIFEST, first_documents, open_texts
    from niels_gpt.pipeline.places import store_of

    with one_sentence():
        folder = layout.RAW / source
        if not (folder / MANIFEST).is_file():
            known = ", ".join(sorted(path.name for path in layout.RAW.glob("*"))) or "none; run `dvc repro` first"
            raise ValueError(f"no documents of a source {source!r} are there; there are those of: {known}")
        params = read_params()[0]
        if source in params.chats:
            raise ValueError(f"{source} is a source of chats: `niels-gpt inspect sft` shows those")
        texts = open_texts(folder, stored=store_of(params, source) if source in params.sources else None)
        typer.echo(f"{texts.rows:,} documents in {source}")
        for name, text in first_documents(texts, n):
            begins = visible(" ".join(text.split())[:160])
            typer.echo(f"--- {visible(name)} ({len(text.encode('utf-8')):,} bytes)\n{begins}")


@app.command("duplicates")
def inspect_duplicates(
    source: Annotated[str | None, typer.Argument(help="only pairs of which one lies in this source")] = None,
    n: Annotated[int, typer.Option(min=1, help="how many pairs")] = 5,
) -> None:
    """Documents that repeat each other, side by side: how much of the smaller stands in the other, and which lines."""
    with one_sentence():
        from niels_gpt.pipeline.duplicate_pairs import shown_pairs

        for line in shown_pairs(read_params()[0], source, n=n, width=shutil.get_terminal_size().columns):
            typer.echo(visible(line))


@app.command("secrets")
def inspect_secrets(
    source: Annotated[
        str | None, typer.Argument(help="a source of params.yaml; all of them where none is given")
    ] = None,
) -> None:
    """List all secrets in the text as it lies, paged: document, line, kind, and the line with its secrets masked."""
    with one_sentence():
        from niels_gpt.pipeline.secret_list import listed_secrets

        click.echo_via_pager(visible(line) + "\n" for line in listed_secrets(read_params()[0], source))


@app.command("mix")
def inspect_mix() -> None:
    """The weights of the mix, the tokens there are, and how often a run goes over each source."""
    with one_sentence():
        params, mix = read_params()[0], read_result(layout.MIX)
        tokens = {name: source["train"]["tokens"] for name, source in mix["sources"].items()}
        seen = exposures(params.p_train, tokens, drawn=params.train.total_steps * params.train.B * params.model.T)
        typer.echo(f"{'source':<12}{'weight':>8}{'share':>8}{'tokens':>14}{'epochs':>12}")
        for name, source in seen.items():
            weight = params.p_train.get(name, 0.0)
            typer.echo(f"{name:<12}{weight:>8g}{source.share:>8.3f}{source.tokens:>14,}{source.epochs:>12.2f}")

        from niels_gpt.model.size import parameter_count
        from niels_gpt.train.scaling_law import most_epochs

        most = most_epochs(parameter_count(params.model.config(V=mix["vocab_size"])))
        for sentence in read_too_often(seen, most=most):
            typer.echo(f"note: {sentence}")


@app.command("batch")
def inspect_batch(
    step: Annotated[int, typer.Option(min=0, help="of the run: batch n is the same every time")] = 0,
    rows: Annotated[int, typer.Option(min=1, help="how many rows to show")] = 4,
    color: Annotated[bool, typer.Option(help="ends of documents in colour; without it, as <eot>")] = True,
) -> None:
    """A training batch as the model sees it: every row with its source, and where documents end."""
    with one_sentence():
        params, _ = read_params()[0], read_result(layout.MIX)
        from niels_gpt.pipeline.pretraining import open_pretraining
        from niels_gpt.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(layout.TOKENIZER)
        eot = tokenizer.special_token_ids()["eot"]
        end = "\033[1;33m<eot>\033[0m" if color else "<eot>"
        for number, row in enumerate(open_pretraining(params, device="cpu")[0].rows(step)[:rows]):
            parts: list[list[int]] = [[]]
            for token in row.ids:
                if token == eot:
                    parts.append([])
                else:
                    parts[-1].append(token)
            text = end.join(visible(tokenizer.decode(part)) for part in parts)
            typer.echo(f"--- row {number}: {row.source}, window {row.window}\n{text}")


@app.command("sft")
def inspect_sft(
    n: Annotated[int, typer.Option(min=1, help="how many chats of each source")] = 3,
    color: Annotated[bool, typer.Option(help="colour what is learned; without it, it stands in «»")] = True,
) -> None:
    """Chats as the model sees them, cut at T, with the tokens it is trained to say marked."""
    with one_sentence():
        T, names = read_result(layout.PRETRAINED / layout.CONFIG)["T"], list(read_result(layout.CHAT_MIX)["sources"])
        if not names:
            raise ValueError("there are no chats to show: params.yaml names no source of them")

        import numpy as np

        from niels_gpt.cache.chat_manifest import open_chats
        from niels_gpt.model.targets import IGNORE_INDEX
        from niels_gpt.report.chats import mark_chat
        from niels_gpt.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(layout.TOKENIZER)
        chats = open_chats(layout.CHAT_MIX, names=names, T=T, device="cpu", root=Path())
        for name, examples in chats.train.items():
            for row in range(min(n, len(examples))):
                x, y, masked = (tensor[0].tolist() for tensor in examples.examples(np.array([row])))
                learned = [False, *(target != IGNORE_INDEX for target in masked)]
                typer.echo(f"--- {name} {row}\n{mark_chat(tokenizer, [x[0], *y], learned, color=color)}\n")
