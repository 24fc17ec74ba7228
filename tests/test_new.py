"""Tests of a project outside any clone: an installed wheel goes from text to a model that generates."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, TINY, with_values_in_place

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def niels_gpt(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Install the wheel; return its command, which finds its dependencies but not the clone, with a minimal PATH."""
    folder = tmp_path_factory.mktemp("wheel")
    left_out = shutil.ignore_patterns(".git", ".venv", ".ci", "cache", "models", "checkpoints", "logs", "docs", "tests")
    shutil.copytree(ROOT, folder / "clone", ignore=lambda at, names: left_out(at, names) if at == str(ROOT) else set())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    built = folder / "built"
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", built, folder / "clone"]
    subprocess.run(build, check=True)
    venv.create(folder / "env", symlinks=True)
    python = folder / "env/bin/python"
    subprocess.run([*pip, "--python", python, "install", "--quiet", "--no-deps", *built.glob("*.whl")], check=True)
    (site,) = (folder / "env/lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")

    def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        home = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", "COLUMNS": "100"}
        command = [folder / "env/bin/niels-gpt", *map(str, arguments)]
        return subprocess.run(command, cwd=cwd, env=home, capture_output=True, text=True, timeout=900, check=False)

    return run


@pytest.fixture(scope="module")
def projects(niels_gpt: Command, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Create a project, copy it and train a model in the original; return the folders of both."""
    folder = tmp_path_factory.mktemp("projects")
    notes = ROOT / "data/roam/kitchen"
    done = niels_gpt("new", "kitchen", notes, "--hours", "0.1", "--from", "scratch", cwd=folder)
    assert done.returncode == 0, done.stderr
    shutil.copytree(folder / "kitchen", folder / "copy", symlinks=True)
    params = folder / "kitchen/params.yaml"
    # Leave out the tokenizer and the context length, which decide which windows and chats fit.
    sized = {key: value for key, value in TINY.items() if key not in ("tokenizer", "model.T")}
    params.write_text(with_values_in_place(params.read_text(encoding="utf-8"), sized), encoding="utf-8")
    done = niels_gpt("run", cwd=folder / "kitchen")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder / "kitchen", folder / "copy"


@pytest.mark.dag
def test_a_wheel_goes_from_text_to_a_model_that_answers(niels_gpt: Command, projects: tuple[Path, Path]) -> None:
    trained, _ = projects
    said = niels_gpt("sample", "The bread", "--max-tokens", 8, cwd=trained)
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("The bread")
    assert "kitchen" in (trained / "params.yaml").read_text(encoding="utf-8")
    tracked = subprocess.run(["git", "ls-files"], cwd=trained, capture_output=True, text=True, check=True).stdout
    assert "stages" not in tracked
    assert "niels_gpt" not in tracked


@pytest.mark.dag
def test_a_project_that_was_moved_runs_nothing_again(niels_gpt: Command, projects: tuple[Path, Path]) -> None:
    trained, _ = projects
    before = {path: path.stat().st_mtime_ns for path in (trained / "models").rglob("*.pt")}
    moved = trained.rename(trained.with_name("moved"))
    try:
        done = niels_gpt("run", cwd=moved)
        after = {
            trained / path.relative_to(moved): path.stat().st_mtime_ns for path in (moved / "models").rglob("*.pt")
        }
    finally:
        moved.rename(trained)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert after == before


@pytest.mark.dag
def test_a_project_of_another_version_says_what_to_do(niels_gpt: Command, projects: tuple[Path, Path]) -> None:
    _, project = projects
    dag = project / "dvc.yaml"
    now = dag.read_text(encoding="utf-8")
    same = niels_gpt("upgrade", cwd=project)
    assert "is that of the installed version" in same.stdout
    dag.write_text(re.sub(r"niels_gpt [\d.]+;", "niels_gpt 0.0.1;", now).replace("cache/mix.json", "cache/old.json"))
    git = ["git", "-c", "user.name=n", "-c", "user.email=n@localhost", "commit", "-qam", "older"]
    subprocess.run(git, cwd=project, check=True)
    refused = niels_gpt("run", cwd=project)
    assert refused.returncode == 1
    assert "made by niels_gpt 0.0.1, and" in refused.stderr
    assert "`niels-gpt upgrade` shows what changes" in refused.stderr
    shown = niels_gpt("upgrade", cwd=project).stdout
    assert "-        - cache/old.json" in shown or "- cache/old.json" in shown
    assert niels_gpt("upgrade", "--write", cwd=project).returncode == 0
    assert dag.read_text(encoding="utf-8") == now


@pytest.mark.dag
def test_bad_arguments_leave_no_folder_behind(niels_gpt: Command, projects: tuple[Path, Path], tmp_path: Path) -> None:
    refused = niels_gpt("new", "mine", "nowhere", cwd=tmp_path)
    assert refused.returncode == 1
    assert "nowhere does not exist" in refused.stderr
    assert os.listdir(tmp_path) == []
    again = niels_gpt("new", projects[0], "nowhere", cwd=tmp_path)
    assert "exists: name a new folder" in again.stderr
    assert niels_gpt("upgrade", cwd=tmp_path).returncode == 1


def test_the_changelog_begins_with_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changes, re.MULTILINE)[1] == version  # type: ignore[index]
