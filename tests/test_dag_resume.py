"""Tests of training that is killed, interrupted or tampered with while DVC runs it."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from niels_gpt.pipeline.yaml_files import parse_yaml
from tests.conftest import Repo

pytestmark = pytest.mark.dag
STEPS = 120
GATE = 50  # the step after which a run blocks until it is released


def trained_md5(repo: Repo) -> str:
    lock = parse_yaml((repo.path / "dvc.lock").read_text(), name="dvc.lock")
    md5: str = next(out["md5"] for out in lock["stages"]["train"]["outs"] if out["path"] == "models/pretrain")
    return md5


def lengthen(repo: Repo) -> None:
    repo.set(train__total_steps=STEPS, train__eval_every=STEPS, runtime__checkpoint_every=20, runtime__log_every=GATE)


@contextmanager
def held_back(repo: Repo) -> Iterator[tuple[subprocess.Popen[str], Path, Callable[[], None]]]:
    """Start `dvc repro train`, which blocks at its first report, half-way: its log is a named pipe without a reader.

    Yield the process, the folder of the run, which holds a checkpoint, and a function that lets the run continue.
    """
    gate = repo.path / "logs/train.jsonl"
    gate.unlink(missing_ok=True)
    os.mkfifo(gate)
    opened: list[int] = []
    process = repo.start("dvc", "repro", "train")
    try:
        yield process, wait_for_checkpoint(repo, process), lambda: opened.append(os.open(gate, os.O_RDWR))
    finally:
        gate.unlink()
        for descriptor in opened:
            os.close(descriptor)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_checkpoint(repo: Repo, process: subprocess.Popen[str]) -> Path:
    """Return the folder of the run in progress, which the template does not have, once it holds a checkpoint."""
    while process.poll() is None:
        for folder in (repo.path / "checkpoints").glob("*"):
            if (folder / "state.pt").is_file() and folder.name not in known_runs(repo):
                return folder
        time.sleep(0.01)
    raise AssertionError(f"it ended before there was a checkpoint: {process.communicate()[0]}")


def known_runs(repo: Repo) -> set[str]:
    file = repo.path / "known-runs"
    return set(file.read_text().split()) if file.exists() else set()


@pytest.fixture
def long_repo(built_repo: Repo) -> Repo:
    (built_repo.path / "known-runs").write_text(" ".join(p.name for p in (built_repo.path / "checkpoints").glob("*")))
    lengthen(built_repo)
    return built_repo


@pytest.fixture(scope="module")
def uninterrupted_md5(built_template: Repo, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("whole") / "repo"
    shutil.copytree(built_template.path, path, symlinks=True)
    repo = Repo(path)
    lengthen(repo)
    assert repo.repro("train") == ["train"]
    return trained_md5(repo)


def test_a_killed_run_resumes_to_the_same_weights(long_repo: Repo, uninterrupted_md5: str) -> None:
    with held_back(long_repo) as (process, folder, _):
        os.kill(int((folder / "lock").read_text()), signal.SIGKILL)
        process.communicate(timeout=1200)
    assert process.returncode != 0
    assert not (long_repo.path / "models/pretrain").exists()

    # Another learning rate makes it another run, with checkpoints of its own.
    long_repo.set(train__base_lr=0.0123, train__total_steps=30)
    other = long_repo.run("dvc", "repro", "train").stdout
    assert "resuming after step" not in other
    assert "step 30/30" in other

    long_repo.set(train__base_lr=parse_base_lr(long_repo), train__total_steps=STEPS)
    resumed = long_repo.run("dvc", "repro", "train").stdout
    assert "resuming after step" in resumed
    assert trained_md5(long_repo) == uninterrupted_md5


def parse_base_lr(repo: Repo) -> float:
    committed = repo.run("git", "show", "HEAD:params.yaml").stdout
    lr: float = parse_yaml(committed, name="params.yaml")["train"]["base_lr"]
    return lr


def test_ctrl_c_saves_and_says_how_to_go_on(long_repo: Repo, uninterrupted_md5: str) -> None:
    with held_back(long_repo) as (process, _, let_on):
        os.killpg(process.pid, signal.SIGINT)
        let_on()
        output, _ = process.communicate(timeout=1200)
    assert process.returncode != 0
    assert "stopped and saved after step" in output
    assert "`dvc repro` resumes from there" in output
    assert "Traceback" not in output
    resumed = long_repo.run("dvc", "repro", "train").stdout
    assert "resuming after step" in resumed
    assert trained_md5(long_repo) == uninterrupted_md5


def test_an_edit_of_a_parameter_while_it_trains_fails_the_stage(long_repo: Repo, uninterrupted_md5: str) -> None:
    before = (long_repo.path / "dvc.lock").read_bytes()
    params = long_repo.path / "params.yaml"
    original = params.read_text()
    with held_back(long_repo) as (process, _, let_on):
        long_repo.set(train__base_lr=0.5)
        let_on()
        output, _ = process.communicate(timeout=1200)
    assert process.returncode != 0
    assert "ERROR: train: train changed while the stage ran" in output
    assert (long_repo.path / "dvc.lock").read_bytes() == before
    assert not (long_repo.path / "models/pretrain").exists()

    params.write_text(original)
    again = long_repo.run("dvc", "repro", "train").stdout
    assert f"resuming after step {STEPS}" in again  # no step was lost
    assert trained_md5(long_repo) == uninterrupted_md5


def test_runtime_may_be_edited_while_it_trains(long_repo: Repo, uninterrupted_md5: str) -> None:
    with held_back(long_repo) as (process, _, let_on):
        long_repo.set(runtime__log_every=11)
        let_on()
        output, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, output
    assert trained_md5(long_repo) == uninterrupted_md5


def test_a_forced_run_trains_anew_to_the_same_weights(built_repo: Repo) -> None:
    before = trained_md5(built_repo)
    for _ in range(2):  # twice, since the first run leaves its entry in dvc.lock unchanged
        forced = built_repo.run("dvc", "repro", "--force", "--single-item", "train").stdout
        assert "resuming after step" not in forced
        assert trained_md5(built_repo) == before
