"""Checks of what params.yaml names outside itself: inputs of sources, and DVC's remotes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from niels_gpt.data.hub import HubSettings, resolve_revision
from niels_gpt.data.readers.files import entries_of, file_faults, name_fault
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.repository import broken_files
from niels_gpt.pipeline.yaml_files import Problem, is_sound


def located(path: str, settings: Any) -> tuple[str, str | None]:
    """Where a source is read from: (its hub dataset, the commit), or (its input, None), which must be well."""
    if isinstance(settings, HubSettings) and settings.dataset is not None:
        config = getattr(settings, "config", None)
        return settings.dataset, resolve_revision(settings.dataset, settings.revision, name=config)
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist: put the source's text there, or take it out of params.yaml")
    if faults := check_input(path):
        more = f" (and {len(faults) - 1} more: niels-gpt doctor names them all)" if faults[1:] else ""
        raise ValueError(faults[0] + more)
    return path, None


def check_input(path: str) -> list[str]:
    """What is wrong with the file or folder of a source, a sentence each; nothing where it can be read and watched.

    DVC reads every file of a folder that it watches, whatever its name, before a stage can say a word: at a FIFO it
    waits for ever. A linked folder it passes over, so that text behind the link would change unseen. Links to files
    are followed and watched.
    """
    if not os.path.isdir(path):
        return list(file_faults(path))
    faults: list[str] = []
    folders = [path]
    while folders:
        for entry in entries_of(folders.pop()):
            if entry.name in layout.UNWATCHED:
                continue
            hidden = any(part.startswith(".") for part in os.path.relpath(entry.path, path).split(os.sep))
            if not os.path.isdir(entry.path):
                faults += file_faults(entry.path)
            elif fault := name_fault(entry.path):
                faults.append(fault)
            elif not entry.is_symlink():
                folders.append(entry.path)
            elif not hidden:  # hidden ones nobody reads
                faults.append(
                    f"{entry.path} is a linked folder, which DVC does not watch: put the folder itself there, or make "
                    f"a source of {os.path.realpath(entry.path)}"
                )
    return sorted(faults)


# What params.yaml names outside itself: files and folders to read, and DVC's remotes. DVC stumbles over what is not
# there, at the first stage that wants it or only when results are pushed; here all of it is told before.


def problems_around(params: Mapping[str, Any], *, wrong: Collection[tuple[str, ...]]) -> Iterator[Problem]:
    """Everything that is wrong with what params.yaml names, as a plain mapping; at the paths in `wrong` it holds
    mistakes, and what rests on them is not looked at."""
    inputs: dict[str, tuple[str, ...]] = {}  # each file once, however many read it
    for of, source in _sources(params):
        if is_sound((*of, "input"), wrong):
            inputs.setdefault(source["input"], (*of, "input"))
    if is_sound(("tokenizer",), wrong) and params["tokenizer"]["kind"] == "byte":
        inputs.setdefault(params["tokenizer"]["corpus"], ("tokenizer", "corpus"))
    for file, path in inputs.items():
        yield from _input_problems(file, path)
    yield from remote_problems(params, folder=Path(), wrong=wrong)
    for name in broken_files(Path()):
        yield Problem((), f"{name} is half-written, DVC was stopped while it wrote it: run `niels-gpt mend`")


def remote_problems(
    params: Mapping[str, Any], *, folder: Path, wrong: Collection[tuple[str, ...]]
) -> Iterator[Problem]:
    """Of sources whose remote DVC does not know in that checkout."""
    try:
        known = known_remotes(folder)
    except ValueError as error:
        yield Problem((), f"DVC's configuration cannot be read ({' '.join(str(error).split())}): mend that file")
        return
    if known is None:
        return
    for path, source in _sources(params):
        if is_sound((*path, "remote"), wrong) and source["remote"] not in known:
            where, remote = ".".join((*path, "remote")), source["remote"]
            yield Problem(
                (*path, "remote"),
                f"{where} is {remote!r}, which is no remote of DVC's; there are: {', '.join(sorted(known)) or 'none'}; "
                f"name one of these, or make it: `dvc remote add {remote} FOLDER`",
            )


def known_remotes(folder: Path) -> set[str] | None:
    """Return the names of DVC's remotes in a checkout, those of this machine included; None if it has no DVC."""
    if not (folder / ".dvc/config").is_file():
        return None
    from dvc.config import Config, ConfigError

    try:
        return set(Config(str(folder / ".dvc"))["remote"])
    except ConfigError as error:
        raise ValueError(error) from error


def _sources(params: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    for table in ("sources", "chats"):
        entries = params.get(table)
        for name, source in entries.items() if isinstance(entries, dict) else ():
            yield (table, str(name)), source


def _input_problems(file: str, path: tuple[str, ...]) -> Iterator[Problem]:
    if not Path(file).exists():
        fix = "put the text there, or take the source out" if path[-1] == "input" else "put it back from git"
        yield Problem(path, f"{'.'.join(path)} is {file}, which is not there: {fix}")
    else:
        yield from (Problem(path, fault) for fault in check_input(file))
