"""What the commands share: an error ends a command with one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from niels_gpt.files.sentences import EXPECTED
from niels_gpt.pipeline.graph import sentence_with_remedy


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
