"""Tests of `dvc exp run`: in the workspace, in a copy, and from the queue."""

import json
import re
import subprocess
import time

import pytest

from tests.conftest import Repo, stages_run

pytestmark = pytest.mark.dag


def test_a_small_number_written_by_dvc_is_read_as_a_number(built_repo: Repo) -> None:
    done = built_repo.run("dvc", "exp", "run", "-S", "train.base_lr=1e-5", "-S", "train.min_lr=1e-6", "train")
    assert stages_run(done.stdout) == ["train"]
    assert "base_lr: 1e-05" in (built_repo.path / "params.yaml").read_text()


def test_a_mistyped_parameter_is_refused_and_nothing_runs(built_repo: Repo) -> None:
    before = (built_repo.path / "dvc.lock").read_bytes()
    done = built_repo.run("dvc", "exp", "run", "-S", "+train.base_lrr=1", check=False)
    assert done.returncode != 0 or stages_run(done.stdout) == []
    done = built_repo.stage("train")
    assert done.returncode == 1
    assert done.stderr.strip().endswith("train.base_lrr is not a parameter; did you mean base_lr?")
    assert (built_repo.path / "dvc.lock").read_bytes() == before


def test_an_experiment_in_a_copy_leaves_the_workspace_alone(built_repo: Repo) -> None:
    before = (built_repo.path / "metrics/train.json").read_bytes()
    done = built_repo.run("dvc", "exp", "run", "--temp", "-n", "mixed", "-S", "p_train.roam=0.3", "curves")
    assert stages_run(done.stdout) == ["train", "curves"]
    assert (built_repo.path / "metrics/train.json").read_bytes() == before
    shown = built_repo.run("dvc", "exp", "show", "--csv", "--only-changed").stdout
    assert "mixed" in shown
    head, weight, *_ = built_repo.run("niels-gpt", "compare").stdout.splitlines()
    assert head.split() == ["HEAD", "mixed"]  # the workspace is the same as HEAD
    assert weight.split() == ["p_train.roam", "0.26", "0.3"]


def test_notes_that_git_ignores_are_missed_by_name_in_a_copy(built_repo: Repo) -> None:
    notes = built_repo.path / ".roam-data"
    notes.mkdir()
    for i in range(6):
        (notes / f"{i}.md").write_text(f"a private{i} note, number {i}, with{i} a few{i} words in{i} it\n" * 5)
    done = built_repo.run("dvc", "exp", "run", "--temp", "-S", "sources.roam.input=.roam-data", check=False)
    assert done.returncode != 0
    assert "load@roam" in done.stderr
    assert ".roam-data" in done.stderr
    with_notes = ("-S", "sources.roam.input=.roam-data", "-C", ".roam-data", "split@roam")
    ran = stages_run(built_repo.run("dvc", "exp", "run", "--temp", *with_notes).stdout)
    assert ran == ["load@roam", "duplicates", "split@roam"]


def test_the_queue_runs_a_sweep(built_repo: Repo) -> None:
    built_repo.run("dvc", "exp", "run", "--queue", "-S", "p_train.roam=0.1,0.5", "curves")
    # Workers outlive the command that starts them and would keep its pipes open.
    subprocess.run(
        ["dvc", "queue", "start", "-j", "1"],
        cwd=built_repo.path,
        env=built_repo.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=600,
    )
    deadline, look = time.monotonic() + 1200, 0
    while len(finished(built_repo)) < 2:  # `dvc queue status` costs as much as an epoch of the model
        assert time.monotonic() < deadline
        look += 1
        assert look % 60 or "Failed" not in built_repo.run("dvc", "queue", "status").stdout
        time.sleep(1)
    built_repo.run("dvc", "queue", "stop", "--kill", check=False)
    shown = built_repo.run("dvc", "exp", "show", "--json").stdout
    assert sorted(set(_find(json.loads(shown), "p_train", "roam"))) == [0.1, 0.26, 0.5]


def finished(repo: Repo) -> list[str]:
    """Return the git references in which DVC keeps experiments, refs/exps/AB/CDEF.../NAME."""
    found = repo.run("git", "for-each-ref", "--format=%(refname)", "refs/exps").stdout.split()
    return [name for name in found if re.match(r"refs/exps/[0-9a-f]{2}/[0-9a-f]{38}/", name)]


def _find(tree: object, section: str, key: str) -> list[float]:
    """Return every value of section.key in the output of `dvc exp show --json`."""
    if isinstance(tree, list):
        return [value for item in tree for value in _find(item, section, key)]
    if not isinstance(tree, dict):
        return []
    found = [tree[section][key]] if key in (tree.get(section) or {}) else []
    return found + [value for item in tree.values() for value in _find(item, section, key)]
