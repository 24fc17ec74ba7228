"""DVC's experiments as git keeps them: a commit each, under refs/exps/BASELINE/NAME, with parameters and metrics.

Read straight out of git: `dvc exp show --json` opens every commit as a repository of its own and takes a second each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from niels_gpt.pipeline.git import ask_git, read_committed

WORKSPACE = "workspace"
# Beside them DVC keeps there what is queued or runs just now, under words that are no hashes.
_REF = re.compile(r"refs/exps/[0-9a-f]{2}/[0-9a-f]{38}/([^/]+)")


@dataclass(frozen=True)
class Experiment:
    """What is there of some files of a commit, or of the workspace, by path."""

    name: str
    files: Mapping[str, str]


def list_experiments(root: Path) -> dict[str, str]:
    """{name: commit} of all experiments, the newest first; of two with one name the newer."""
    told = ask_git(root, "for-each-ref", "--sort=-committerdate", "--format=%(objectname) %(refname)", "refs/exps")
    found: dict[str, str] = {}
    for line in (told or "").splitlines():
        commit, _, ref = line.partition(" ")
        if match := _REF.fullmatch(ref):
            found.setdefault(match[1], commit)
    return found


def read_experiments(root: Path, names: Sequence[str], paths: Sequence[str]) -> list[Experiment]:
    """By name: experiments, revisions of git, `workspace`. A ValueError names those that are none of them."""
    known = list_experiments(root)
    commits = {name: known.get(name) or _commit(root, name) for name in names if name != WORKSPACE}
    if unknown := [name for name, commit in commits.items() if not commit]:
        there = ", ".join([WORKSPACE, "HEAD", *known][:12])
        raise ValueError(f"no experiment and no commit is called {', '.join(unknown)}; there are: {there}")
    wanted = [(commit or "", path) for commit in commits.values() for path in paths]
    texts = dict(zip(wanted, read_committed(root, wanted), strict=True))
    return [
        Experiment(name, _read(root, paths) if name == WORKSPACE else _kept(texts, commits[name] or "", paths))
        for name in names
    ]


def _commit(root: Path, revision: str) -> str | None:
    told = ask_git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    return told.strip() if told else None


def _kept(texts: Mapping[tuple[str, str], str | None], commit: str, paths: Sequence[str]) -> dict[str, str]:
    return {path: text for path in paths if (text := texts[commit, path]) is not None}


def _read(root: Path, paths: Sequence[str]) -> dict[str, str]:
    return {path: (root / path).read_text("utf-8", errors="replace") for path in paths if (root / path).is_file()}
