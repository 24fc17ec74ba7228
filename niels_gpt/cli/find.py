"""niels-gpt find: search the documents, or trace a text to those that it repeats."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from niels_gpt.files.messages import EXPECTED, sentence, visible
from niels_gpt.pipeline.params import Params, read_params
from niels_gpt.pipeline.stores import open_library

if TYPE_CHECKING:
    from niels_gpt.talk.notes import Notes
    from niels_gpt.trace.library import Library


def find(
    words: Annotated[list[str], typer.Argument(help="words, prefix*, or a phrase: '\"spring tide\"'")],
    trace: Annotated[bool, typer.Option("--trace", help="show where training documents have parts of a text")] = False,
    source: Annotated[
        list[str] | None, typer.Option(help="search this source; repeatable (default: private text, else all text)")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="documents to list")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Search your notes; `niels-gpt trace TEXT` is short for `niels-gpt find --trace TEXT`."""
    from niels_gpt.trace.library import find_lines, to_json, trace_lines

    params, typed = read_params()[0], " ".join(words)
    library = ready_library(params)
    if trace:
        found: Sequence[Any] = library.trace(typed)
        lines: Iterable[str] = trace_lines(found)
    else:
        known = [index.name for index in library.indexes]
        if unknown := [name for name in source or () if name not in known]:
            raise ValueError(f"there is no index of {unknown[0]!r}; there are: {', '.join(known)}")
        found = library.find(typed, limit=limit, sources=source or note_sources(params))
        lines = find_lines(found)
    if as_json:
        lines = [json.dumps([to_json(item, with_path=True) for item in found], ensure_ascii=False, indent=1)]
    typer.echo(visible("\n".join(lines)))


def ready_library(params: Params, *, private: bool = True) -> "Library":
    """Return the indexes of all sources, or of public ones; raise a ValueError if there is none."""
    library = open_library(params, private=private)
    if not library.indexes:
        how = "`dvc repro index` makes it" if params.index.run else "set index.run: true and run `dvc repro index`"
        raise ValueError(f"there is no index of the documents: {how}")
    return library


def open_notes(*, private: bool = True) -> "Notes":
    """Return the indexes for a chat or a server; without `private`, of public sources only."""
    from niels_gpt.talk.notes import Notes

    params = read_params()[0]
    return Notes(ready_library(params, private=private), note_sources(params, private=private))


def served_notes(*, private: bool) -> "Notes | None":
    """Return the indexes for a server; if they cannot be opened, say why and return None."""
    try:
        return open_notes(private=private)
    except EXPECTED as error:
        typer.echo(f"no search and no trace: {sentence(error)}", err=True)
        return None


def note_sources(params: Params, *, private: bool = True) -> list[str]:
    """Return the sources that are searched for notes: private text, or public text if there is none."""
    kept = [name for name, source in params.texts.items() if source.private == private]
    return kept or [name for name, source in params.texts.items() if not source.private]
