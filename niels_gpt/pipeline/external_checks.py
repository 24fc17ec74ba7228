"""Checks of the things outside params.yaml that it refers to: inputs of sources, and DVC remotes."""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from niels_gpt.data.hub import HubSettings, resolve_revision
from niels_gpt.data.readers.files import entries_of, file_fault, name_fault
from niels_gpt.data.types import Request
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.repository import broken_files, dvc_config
from niels_gpt.pipeline.sections import NO_INPUT, Source
from niels_gpt.pipeline.yaml_files import is_sound


def request_of(source: Source, *, patience_s: float) -> Request:
    """Return where to read a source: a hub dataset and its commit, or the input.

    Raises if the input does not exist or `check_input` finds a problem.
    """
    settings, path, revision = source.load.settings(), source.input, None
    if isinstance(settings, HubSettings) and settings.dataset is not None:
        path, config = settings.dataset, getattr(settings, "config", None)
        revision = resolve_revision(path, settings.revision, name=config)
    elif not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist: put the source's text there, or remove it from params.yaml")
    elif faults := check_input(path):
        more = f" (and {len(faults) - 1} more: `niels-gpt doctor` lists them all)" if faults[1:] else ""
        raise ValueError(faults[0] + more)
    return Request(path, revision, max_tokens=source.budget.tokens(), patience_s=patience_s)


def check_input(path: str) -> list[str]:
    """Return the problems of a source's file or folder, one sentence each; empty if it can be read and watched.

    DVC hashes every file of a folder, whatever its name, before the stage starts: a FIFO would block it forever. It
    skips linked folders, so changes behind the link would go unnoticed. Links to files are followed and watched.
    """
    if not os.path.isdir(path):
        return [fault] if (fault := file_fault(path)) else []
    faults: list[str] = []
    folders = [path]
    while folders:
        for entry in entries_of(folders.pop()):
            if entry.name in layout.UNWATCHED:
                continue
            hidden = any(part.startswith(".") for part in os.path.relpath(entry.path, path).split(os.sep))
            is_folder = os.path.isdir(entry.path)
            if fault := name_fault(entry.path) if is_folder else file_fault(entry.path):
                faults.append(fault)
            elif is_folder and not entry.is_symlink():
                folders.append(entry.path)
            elif is_folder and not hidden:  # hidden folders are not read
                faults.append(
                    f"{entry.path} is a linked folder, which DVC does not watch: put the folder itself there, or make "
                    f"a source of {os.path.realpath(entry.path)}"
                )
    return sorted(faults)


# DVC reports a missing file or remote only at the first stage that needs it, or at `dvc push`; these checks report
# everything beforehand.


def problems_around(params: Mapping[str, Any], *, wrong: Collection[tuple[str, ...]]) -> Iterator[str]:
    """Yield a sentence for each problem with what params.yaml refers to.

    `params` is the plain mapping; `wrong` has the paths of invalid values, and checks that depend on them are skipped.
    """
    inputs: dict[str, str] = {}  # by which key each is named first, even if several sources read it
    for name, source in _sources(params):
        if is_sound(("sources", name, "input"), wrong):
            inputs.setdefault(source["input"], f"sources.{name}.input")
    if is_sound(("base",), wrong):
        inputs.setdefault(params["base"]["input"], "base.input")
    for file, key in inputs.items():
        if Path(file).exists():
            yield from check_input(file)
            continue
        fix = "put the text there, or remove the source"
        if not key.startswith("sources."):
            fix = "put it back from git" if file == NO_INPUT else "put the model there, or set base.from to null"
        yield f"{key} is {file}, which does not exist: {fix}"
    yield from _remote_problems(params, wrong=wrong)
    for name in broken_files(Path()):
        yield f"{name} is half-written, DVC was stopped while it wrote it: run `niels-gpt doctor --fix`"


def _remote_problems(params: Mapping[str, Any], *, wrong: Collection[tuple[str, ...]]) -> Iterator[str]:
    """Yield a sentence for each source whose remote DVC's configuration lacks."""
    if not Path(".dvc/config").is_file():
        return
    known = dvc_config(Path())["remote"]
    there = ", ".join(sorted(known)) or "none"
    for name, source in _sources(params):
        if is_sound(("sources", name, "remote"), wrong) and (remote := source["remote"]) not in known:
            yield (
                f"sources.{name}.remote is {remote!r}, which is not a DVC remote; there are: {there}; name one of "
                f"these, or create it: `dvc remote add {remote} FOLDER`"
            )


def _sources(params: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    entries = params.get("sources")
    for name, source in entries.items() if isinstance(entries, dict) else ():
        yield str(name), source
