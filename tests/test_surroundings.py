"""Tests of `niels-gpt doctor --params`: it reports all problems of params.yaml, inputs and remotes at once."""

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from niels_gpt.cli.app import app
from niels_gpt.cli.doctor import examine
from niels_gpt.pipeline.external_checks import problems_around
from niels_gpt.pipeline.params import complete
from niels_gpt.pipeline.yaml_files import parse_yaml
from tests.conftest import ROOT, with_values

SAMPLE = (ROOT / "params.yaml").read_text()
FOUND = ("data/wikitext", "data/roam", "data/primer.txt", "data/dolly", "data/oasst1")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout with everything that the sample's params.yaml refers to."""
    monkeypatch.chdir(tmp_path)
    for level in ("GLOBAL", "SYSTEM"):
        monkeypatch.setenv(f"DVC_{level}_CONFIG_DIR", str(tmp_path / level))
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text((ROOT / ".dvc/config").read_text())
    (tmp_path / "params.yaml").write_text(SAMPLE)
    for name in (*FOUND, "data/no-input.md"):
        path = tmp_path / name
        (path.parent if path.suffix else path).mkdir(parents=True, exist_ok=True)
        (path if path.suffix else path / "a.md").write_text("text\n")
    return tmp_path


def written(project: Path, values: dict[str, object]) -> dict[str, Any]:
    (project / "params.yaml").write_text(with_values(SAMPLE, values))
    return complete(parse_yaml((project / "params.yaml").read_text(), name="params.yaml"))


def check() -> list[str]:
    """Run `niels-gpt doctor --params` and return its errors; it exits with 0 only if there are none."""
    result = CliRunner().invoke(app, ["doctor", "--params"])
    lines = result.output.splitlines()
    assert isinstance(result.exception, SystemExit | None), result.exc_info
    assert result.exit_code == (1 if lines else 0)
    assert all(line.startswith("ERROR: ") for line in lines)
    return [line.removeprefix("ERROR: ") for line in lines]


def test_a_valid_project_has_no_errors(project: Path) -> None:
    assert check() == []


def test_all_problems_are_reported_at_once_one_line_each(project: Path) -> None:
    """Invalid values, tables and inputs are reported together; conflicts between values once all values are valid."""
    alone: dict[str, object] = {
        "trian": {},
        "train.base_lr": "fast",
        "train.B": 0,
        "sources.roam.remote": "privat",
        "sources.wiki.load": {"kind": "books"},
        "sources.oasst1.input": "nowhere",
        "runtime.devise": "cpu",
    }
    between: dict[str, object] = {
        "train.warmup_steps": 9999,
        "sft.min_lr": 1.0,
        "splice.dataset_name": "news",
        "memorize.chunk_size": 1000,
        "model.H": 3,
        "p_train.news": 1,
        "p_sft": {"dolly15k": 1, "oasst1": 0},
    }
    written(project, between)
    found = check()
    for words in (
        "train.warmup_steps: 9999 is more than total_steps=800",
        "sft.min_lr: 1.0 is above base_lr=0.006",
        "splice.dataset_name is 'news', which is no source",
        "memorize.chunk_size: 1000 must fit into model.T=128",
        "model.H: C=128 is not a multiple of H=3",
        "p_train has weights for ['news']",
        "p_sft has no weight for ['dialogues']",
    ):
        assert sum(words in line for line in found) == 1, (words, found)
    assert len(found) == 7
    written(project, {**alone, **between})
    os.mkfifo(project / "data/roam/pipe")
    os.rename(project / "data/wikitext", project / "data/away")  # input of a source with an error in another key
    found = check()
    for words in (
        "trian is not a parameter; did you mean train?",
        "train.base_lr is 'fast'",
        "train.B is 0",
        "sources.roam.remote is 'privat', which is not a DVC remote; there are: private, store; name one of these",
        "sources.wiki.load: kind must be one of",
        "sources.wiki.input is data/wikitext, which does not exist",
        "sources.oasst1.input is nowhere, which does not exist: put the text there, or remove the source",
        "runtime.devise is not a parameter; did you mean device?",
        "data/roam/pipe",
    ):
        assert sum(words in line for line in found) == 1, (words, found)
    assert len(found) == 9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "params.yaml holds no parameters: `niels-gpt preset sample`"),
        ("- train\n- sft\n", "params.yaml holds no parameters"),
        ("train:\n  B: [8\n", "params.yaml is not valid YAML at line 3, column 1"),
        ("train:\n\tB: 8\n", "params.yaml is not valid YAML at line 2, column 1"),
    ],
)
def test_a_file_that_is_no_set_of_parameters_gets_one_line(project: Path, text: str, words: str) -> None:
    (project / "params.yaml").write_text(text)
    (line,) = check()
    assert words in line


def test_no_file_gets_one_line_as_well(project: Path) -> None:
    (project / "params.yaml").unlink()
    assert check() == ["there is no params.yaml here: run this in the project's folder"]


def test_files_that_dvc_left_half_written_are_reported_with_the_fix(project: Path) -> None:
    (project / ".dvc/tmp").mkdir(parents=True, exist_ok=True)
    (project / ".dvc/tmp/rwlock").write_text('{"a')
    (project / "dvc.lock").write_text("schema: '2.0'\nstages:\n  co")
    half = "is half-written, DVC was stopped while it wrote it: run `niels-gpt doctor --fix`"
    assert check() == [f"dvc.lock {half}", f".dvc/tmp/rwlock {half}"]


def test_remotes_are_those_of_the_checkout_and_of_the_machine(project: Path) -> None:
    for place, name in ((".dvc/config.local", "mine"), ("GLOBAL/config", "everywhere"), ("SYSTEM/config", "ours")):
        (project / place).parent.mkdir(exist_ok=True)
        (project / place).write_text(f"[core]\n    remote = x\n['remote \"{name}\"']\n    url = /tmp/%x\n")
    params = written(project, {"sources.roam.remote": "mine", "sources.oasst1.remote": "theirs"})
    (problem,) = problems_around(params, wrong=[])
    there = "everywhere, mine, ours, private, store"
    assert problem.startswith(f"sources.oasst1.remote is 'theirs', which is not a DVC remote; there are: {there}; ")
    findings = {finding.what: finding.fix for finding in examine(params) if finding.fix}
    assert findings == {problem.rpartition(": ")[0]: problem.rpartition(": ")[2]}
    (project / ".dvc/config").unlink()  # without it, the folder is not known to use DVC
    assert list(problems_around(params, wrong=[])) == []


@pytest.mark.parametrize("text", [b"url = here\n", b"[core\n", b"[core]\n\xff = 1\n"])
def test_a_configuration_of_dvcs_that_is_none_gets_one_line(project: Path, text: bytes) -> None:
    (project / ".dvc/config").write_bytes(text)
    (line,) = check()
    assert "DVC's configuration cannot be read (" in line


def test_the_placeholder_that_dvc_watches_instead_of_a_text_must_exist(project: Path) -> None:
    (project / "data/no-input.md").unlink()
    assert check() == ["base.input is data/no-input.md, which does not exist: put it back from git"]
    hub = {"sources.wiki.input": "data/no-input.md", "sources.wiki.load.dataset": "a/b"}
    written(project, hub)
    (line,) = check()
    assert line.startswith("sources.wiki.input is data/no-input.md, which does not exist")
    (project / "data/no-input.md").write_text("none\n")
    assert check() == []


def test_a_missing_file_that_two_sources_read_is_reported_once(project: Path) -> None:
    (project / "data/primer.txt").unlink()
    (line,) = check()
    assert line.startswith("sources.primer.input is data/primer.txt, which does not exist")
