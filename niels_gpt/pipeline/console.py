"""What the commands share: an error ends a command with one sentence, and no text is too strange to print."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

import typer
from typer.core import TyperCommand

from niels_gpt.files.sentences import EXPECTED
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.graph import sentence_with_remedy
from niels_gpt.pipeline.presets import known_presets


@contextmanager
def one_sentence() -> Iterator[None]:
    """What went wrong in one sentence, and a non-zero exit."""
    try:
        yield
    except (typer.Exit, typer.Abort, BrokenPipeError):  # how a command ends, and `| head`
        raise
    except EXPECTED as error:
        typer.echo(f"ERROR: {sentence_with_remedy(error)}", err=True)
        raise typer.Exit(1) from error


def show_version(wanted: bool) -> None:
    """`--version`, and nothing else then."""
    if wanted:
        try:
            number = version("niels_gpt")
        except PackageNotFoundError:
            number = "of a checkout that was not installed"
        typer.echo(f"niels-gpt {number}")
        raise typer.Exit


def print_any_text() -> None:
    """What a terminal's encoding cannot write is shown by number: a model may say anything."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class PresetCommand(TyperCommand):
    """Its help ends with the presets that there are."""

    def format_help(self, ctx: typer.Context, formatter: object) -> None:  # type: ignore[override]
        known = known_presets(layout.PRESETS)
        lines = [f"{name}: {about}" for name, about in known.items()] or ["Run it in the project's folder."]
        self.epilog = "\n\n".join(["Presets:", *lines])
        super().format_help(ctx, formatter)  # type: ignore[arg-type]
