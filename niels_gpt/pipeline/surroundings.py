"""What params.yaml names outside itself: files and folders to read, and DVC's remotes. DVC stumbles over what is not
there, at the first stage that wants it or only when results are pushed; here all of it is told before."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from niels_gpt.pipeline.dvc_files import broken_files
from niels_gpt.pipeline.inputs import check_input
from niels_gpt.pipeline.mistakes import Problem, is_sound


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
