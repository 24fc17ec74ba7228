"""Tests of a project outside any clone: an installed wheel goes from text to a model that generates."""

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
from typer.testing import CliRunner

from niels_gpt.cli.app import app
from niels_gpt.cli.new import write_project
from tests.conftest import ROOT, TINY, SharedOnce, with_values_in_place

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def niels_gpt(shared_once: SharedOnce) -> Command:
    """Install the wheel; return its command, which finds its dependencies but not the clone, with a minimal PATH."""

    def install(folder: Path) -> None:
        away = shutil.ignore_patterns(".git", ".venv", ".ci", "cache", "models", "checkpoints", "logs", "docs", "tests")
        shutil.copytree(ROOT, folder / "clone", ignore=lambda at, names: away(at, names) if at == str(ROOT) else set())
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        built = folder / "built"
        build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", built, folder / "clone"]
        subprocess.run(build, check=True)
        venv.create(folder / "env", symlinks=True)
        python = folder / "env/bin/python"
        subprocess.run([*pip, "--python", python, "install", "--quiet", "--no-deps", *built.glob("*.whl")], check=True)
        (site,) = (folder / "env/lib").glob("python*/site-packages")
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")

    folder = shared_once("wheel", install)

    def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        home = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", "COLUMNS": "100"}
        command = [folder / "env/bin/niels-gpt", *map(str, arguments)]
        return subprocess.run(command, cwd=cwd, env=home, capture_output=True, text=True, timeout=900, check=False)

    return run


@pytest.fixture(scope="module")
def project(niels_gpt: Command, shared_once: SharedOnce) -> Path:
    """Create a project with the installed command, train a model in it and return its folder."""

    def train(folder: Path) -> None:
        folder.mkdir()
        notes = ROOT / "data/roam/kitchen"
        done = niels_gpt("new", "kitchen", notes, "--hours", "0.1", "--from", "scratch", cwd=folder)
        assert done.returncode == 0, done.stderr
        params = folder / "kitchen/params.yaml"
        # Leave out the tokenizer and the context length, which decide which windows and chats fit.
        sized = {key: value for key, value in TINY.items() if key not in ("tokenizer", "model.T")}
        params.write_text(with_values_in_place(params.read_text(encoding="utf-8"), sized), encoding="utf-8")
        done = niels_gpt("run", cwd=folder / "kitchen")
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    return shared_once("projects", train) / "kitchen"


@pytest.mark.dag
def test_a_wheel_goes_from_text_to_a_model_that_answers(niels_gpt: Command, project: Path) -> None:
    said = niels_gpt("sample", "The bread", "--max-tokens", 8, cwd=project)
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("The bread")
    assert "kitchen" in (project / "params.yaml").read_text(encoding="utf-8")
    tracked = subprocess.run(["git", "ls-files"], cwd=project, capture_output=True, text=True, check=True).stdout
    assert "stages" not in tracked
    assert "niels_gpt" not in tracked


@pytest.mark.dag
def test_a_project_that_was_moved_runs_nothing_again(niels_gpt: Command, project: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(project, moved, symlinks=True)
    before = {path: path.stat().st_mtime_ns for path in (moved / "models").rglob("*.pt")}
    done = niels_gpt("run", cwd=moved)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert before
    assert {path: path.stat().st_mtime_ns for path in (moved / "models").rglob("*.pt")} == before


@pytest.mark.slow
def test_a_project_of_another_version_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path / "project", name="project")
    monkeypatch.chdir(tmp_path / "project")
    dag = Path("dvc.yaml")
    now = dag.read_text(encoding="utf-8")
    assert "is that of the installed version" in CliRunner().invoke(app, ["upgrade"]).stdout
    dag.write_text(re.sub(r"niels_gpt [\d.]+;", "niels_gpt 0.0.1;", now).replace("cache/mix.json", "cache/old.json"))
    git = ["git", "-c", "user.name=n", "-c", "user.email=n@localhost", "commit", "-qam", "older"]
    subprocess.run(git, check=True)
    refused = CliRunner().invoke(app, ["run"])
    assert refused.exit_code == 1
    assert "made by niels_gpt 0.0.1, and" in refused.stderr
    assert "`niels-gpt upgrade` shows what changes" in refused.stderr
    assert "- cache/old.json" in CliRunner().invoke(app, ["upgrade"]).stdout
    assert CliRunner().invoke(app, ["upgrade", "--write"]).exit_code == 0
    assert dag.read_text(encoding="utf-8") == now


@pytest.mark.slow
def test_bad_arguments_leave_no_folder_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, ["new", "mine", "nowhere"])
    assert refused.exit_code == 1
    assert "nowhere does not exist" in refused.stderr
    assert os.listdir() == []
    assert "exists: name a new folder" in CliRunner().invoke(app, ["new", ".", "nowhere"]).stderr
    assert CliRunner().invoke(app, ["upgrade"]).exit_code == 1


def test_the_changelog_begins_with_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changes, re.MULTILINE)[1] == version  # type: ignore[index]
