"""Tests of the repair of files that DVC leaves half-written when it is stopped."""

import fcntl
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from niels_gpt.cli.app import app
from niels_gpt.cli.doctor import examine
from niels_gpt.pipeline.params import read_params
from niels_gpt.pipeline.repository import broken_files, mend, read_records
from tests.conftest import ROOT, Repo

RECORDED = yaml.load((ROOT / "dvc.lock").read_text(), yaml.CSafeLoader)["stages"]


def lock_of(*names: str) -> str:
    """Return a dvc.lock in which these stages have run."""
    return yaml.safe_dump({"schema": "2.0", "stages": {name: RECORDED[name] for name in names}}, sort_keys=False)


WHOLE = lock_of("split@roam", "cache")
CUT = WHOLE[: len(WHOLE) // 2]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "t")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "t@example.invalid")
    (tmp_path / "dvc.yaml").touch()
    git("init", "-q")
    return tmp_path


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True)


def commit_lock(text: str) -> None:
    Path("dvc.lock").write_text(text)
    git("add", "dvc.lock")
    git("commit", "-qm", "lock")


def test_a_lock_cut_anywhere_is_rejected_or_lacks_only_whole_records() -> None:
    assert read_records(WHOLE)
    assert read_records((ROOT / "dvc.lock").read_text())
    accepted = 0
    for end in range(len(WHOLE)):
        stages = read_records(WHOLE[:end])
        if stages is None:
            continue
        accepted += 1
        for name, stage in stages.items():
            known = RECORDED[name]
            assert stage["cmd"] == known["cmd"]
            assert stage.get("params") == known.get("params")
            assert stage["deps"] == known["deps"]
            assert stage["outs"] == known["outs"][: len(stage["outs"])]
    assert accepted <= 3  # cut after the first stage, or after an output of the second


@pytest.mark.parametrize(
    "text", ["", "\n", "{}\n", "schema: '2.0'\n", "schema: '2.0'\nstages:\n", "- a\n", "\0\n", CUT]
)
def test_a_broken_lock_comes_back_as_committed_and_without_a_commit_there_is_none(project: Path, text: str) -> None:
    lock = project / "dvc.lock"
    lock.write_text(text)
    assert broken_files(project) == ["dvc.lock"]
    (sentence,) = mend(project)
    assert "was deleted; `dvc repro` restores finished stages from its cache" in sentence
    assert not lock.exists()
    assert mend(project) == []
    commit_lock(WHOLE)
    lock.write_text(text)
    (sentence,) = mend(project)
    assert "is restored as committed" in sentence
    assert lock.read_text() == WHOLE
    assert mend(project) == []


def test_a_merge_conflict_in_the_lock_is_left_to_the_user(project: Path) -> None:
    text = f"<<<<<<< HEAD\n{WHOLE}=======\n{CUT}\n>>>>>>> other\n"
    (project / "dvc.lock").write_text(text)
    with pytest.raises(ValueError, match=r"both sides of a git merge: `git checkout --ours dvc\.lock`"):
        mend(project)
    assert (project / "dvc.lock").read_text() == text


@pytest.mark.parametrize("text", ["", '{"write": {"a"', "[]"])
def test_other_half_written_files_are_removed(project: Path, text: str) -> None:
    (project / "dvc.lock").write_text(WHOLE)
    runs = ".dvc/cache/runs/ab"
    for name in (".dvc/tmp/rwlock", f"{runs}/abc/.xyz.tmp", f"{runs}/abc/def", f"{runs}/abd/.xyz.tmp"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    (project / runs / "abe").mkdir()
    broken = [".dvc/tmp/rwlock", f"{runs}/abc/.xyz.tmp", f"{runs}/abd", f"{runs}/abe"]
    assert broken_files(project) == broken
    assert [sentence.split()[0] for sentence in mend(project)] == broken
    assert broken_files(project) == []
    assert not any((project / name).exists() for name in broken)
    assert (project / ".dvc/cache/runs/ab/abc/def").exists()


def test_nothing_is_touched_while_dvc_is_at_work(project: Path) -> None:
    commit_lock(WHOLE)
    (project / "dvc.lock").write_text(CUT)
    (project / ".dvc/tmp").mkdir(parents=True)
    with (project / ".dvc/tmp/lock").open("a+") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        done = CliRunner().invoke(app, ["doctor", "--fix", "--params"])
        assert done.exit_code == 1
        assert "ERROR: DVC is running here: wait for it, then try again" in done.output
        assert (project / "dvc.lock").read_text() == CUT
    done = CliRunner().invoke(app, ["doctor", "--fix", "--params"])
    assert "dvc.lock was half-written and is restored" in done.output
    assert (project / "dvc.lock").read_text() == WHOLE
    assert CliRunner().invoke(app, ["doctor", "--fix", "--params"]).output.startswith("nothing to fix\n")


def test_mend_elsewhere_says_where_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["doctor", "--fix", "--params"])
    assert done.exit_code == 1
    assert "there is no dvc.yaml here: run this in the project's folder" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_doctor_names_what_is_half_written(project: Path) -> None:
    params = read_params(ROOT / "params.yaml")[1]
    (project / "dvc.lock").write_text(WHOLE)
    assert "run `niels-gpt doctor --fix`" not in [finding.fix for finding in examine(params)]
    (project / "dvc.lock").write_text(CUT)
    findings = {finding.what: finding.fix for finding in examine(params)}
    assert findings["dvc.lock is half-written, DVC was stopped while it wrote it"] == "run `niels-gpt doctor --fix`"


@pytest.mark.dag
def test_after_a_mend_dvc_repro_ends_as_if_it_had_never_been_stopped(built_repo: Repo) -> None:
    """In a real repository, with dvc.lock cut and the last stage not yet in the run cache, only that stage reruns."""
    lock = built_repo.path / "dvc.lock"
    text = lock.read_text()
    built_repo.run("git", "rm", "-q", "--cached", "dvc.lock")
    built_repo.run("git", "commit", "-qm", "no lock: nothing but the run cache can bring it back")
    lock.write_text(text[: len(text) // 2])
    (built_repo.path / ".dvc/tmp/rwlock").write_text("")
    for entry in (built_repo.path / ".dvc/cache/runs").glob("*/*/*"):
        if "metrics/memorize.json" in entry.read_text():
            entry.unlink()
            (entry.parent / ".half.tmp").write_text("cmd: python -m stages.memorize\n")
    assert built_repo.run("dvc", "repro", check=False).returncode != 0
    built_repo.run("niels-gpt", "doctor", "--fix", "--params")
    assert built_repo.repro() == ["memorize"]
    assert lock.read_text() == text
