"""Commands `niels-gpt new` and `niels-gpt upgrade`: a folder that uses the installed package, without a clone."""

import difflib
import os
import re
import shutil
import subprocess
from contextlib import chdir
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

import niels_gpt
from niels_gpt.cli.init import Chat, Hours, Start, init
from niels_gpt.files.atomic import atomic_path, write_text
from niels_gpt.files.messages import read_text
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.repository import ask_git, refuse_uncommitted

_MADE_BY = re.compile(r"# Made by niels_gpt (\S+);")
_CODE_OF_A_CLONE = "    deps: [niels_gpt, stages]\n"
_README = """\
# {name}

A small GPT trained on my text, by niels_gpt.

```bash
niels-gpt run       # runs what changed, from text to a model and its report
niels-gpt chat      # talks with the model
```

params.yaml has the settings, and `niels-gpt params` explains them. Text, models and caches stay out of git.
"""


def new(
    folder: Annotated[Path, typer.Argument(help="the project's folder, which must not exist yet")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="folder with your text, which stays there")],
    hours: Hours = 1.0,
    chat: Chat = None,
    start: Start = None,
) -> None:
    """Write a project folder for your text: dvc.yaml, params.yaml, git and DVC set up, and what `init` chooses."""
    if folder.exists():
        raise ValueError(f"{folder} exists: name a new folder, or run `niels-gpt init` in it if it is a project")
    if shutil.which("git") is None:
        raise ValueError("git is not installed, which keeps a project's history: install it, then run this again")
    inputs = [[os.path.abspath(os.path.expanduser(path)) for path in paths] for paths in (texts, chat or [])]
    with atomic_path(folder) as temporary:
        write_project(temporary, name=folder.name)
        with chdir(temporary):
            init(inputs[0], hours=hours, chat=inputs[1], start=start)
    typer.echo(f"project  {folder}: `cd {folder}`, then `niels-gpt run`")


def upgrade(
    write: Annotated[bool, typer.Option("--write", help="write the installed version's dvc.yaml")] = False,
) -> None:
    """Show what the installed version changes in this project's dvc.yaml."""
    made = made_by()
    if made is None:
        raise ValueError("this folder was not made by `niels-gpt new`: upgrade a clone with `git pull`")
    old, dag = read_text(layout.DAG), project_dag()
    if old == dag:
        typer.echo(f"{layout.DAG} is that of the installed version, {version('niels_gpt')}")
        return
    if not write:
        lines = difflib.unified_diff(old.splitlines(), dag.splitlines(), made, version("niels_gpt"), lineterm="")
        typer.echo("\n".join(lines))
        typer.echo("\n`niels-gpt upgrade --write` writes it; stages whose code changed run again")
        return
    refuse_uncommitted(Path(), layout.DAG)
    write_text(layout.DAG, dag)
    typer.echo(f"{layout.DAG} is now that of {version('niels_gpt')}; `git checkout {layout.DAG}` restores it")


def refuse_other_version() -> None:
    """Raise ValueError if this project was made by another version than the installed one."""
    made, installed = made_by(), version("niels_gpt")
    if made is not None and made != installed:
        raise ValueError(
            f"this project was made by niels_gpt {made}, and {installed} is installed: `niels-gpt upgrade` shows what "
            f"changes, or `pip install niels_gpt=={made}`"
        )


def made_by() -> str | None:
    """Return the version that made this project; None in a clone, which has its own code."""
    found = _MADE_BY.match(read_text(layout.DAG)) if layout.DAG.is_file() else None
    return found and found[1]


def project_dag() -> str:
    """Return dvc.yaml for a project without code of its own: fingerprints of installed code are always taken anew."""
    dag = read_text(_package_files() / layout.DAG)
    assert _CODE_OF_A_CLONE in dag
    made = f"# Made by niels_gpt {version('niels_gpt')}; `niels-gpt upgrade` shows what a newer version changes.\n"
    return made + dag.replace(_CODE_OF_A_CLONE, "    always_changed: true\n")


def write_project(folder: Path, *, name: str) -> None:
    """Write the files of a project into a new folder, as the first commit of a git repository with DVC."""
    folder.mkdir(parents=True)
    for entry in (".dvc", ".dvcignore", ".gitignore", "data", "params.yaml", "presets"):
        source = _package_files() / entry
        if source.is_dir():
            shutil.copytree(source, folder / entry, ignore=shutil.ignore_patterns("tmp", "cache", "*.local"))
        else:
            shutil.copy2(source, folder / entry)
    # The sample's own parameters, so that the preset `sample` finds them in git.
    (folder / layout.DAG).write_text(project_dag(), encoding="utf-8")
    (folder / "README.md").write_text(_README.format(name=name), encoding="utf-8")
    _git(folder, "init", "--quiet")
    if ask_git(folder, "var", "GIT_COMMITTER_IDENT") is None:
        _git(folder, "config", "user.name", "niels_gpt")
        _git(folder, "config", "user.email", "niels_gpt@localhost")
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", f"New project, by niels_gpt {version('niels_gpt')}")


def _git(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"`git {arguments[0]}` failed ({done.stderr.strip()}): fix that, then run this again")


def _package_files() -> Path:
    """Return where a project's files are: in the installed package, or at the top of a clone."""
    package = Path(niels_gpt.__file__).parent
    return package / "project" if (package / "project").is_dir() else package.parent
