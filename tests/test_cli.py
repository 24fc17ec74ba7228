from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from niels_gpt.cli import app
from niels_gpt.presets import apply_preset
from stages.params import parse_params
from tests.conftest import ROOT

SAMPLE, V0 = ((ROOT / f"presets/{name}.yaml").read_text() for name in ("sample", "v0"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "presets", tmp_path / "presets")
    shutil.copy(ROOT / "params.yaml", tmp_path / "params.yaml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_preset_on_itself_changes_no_byte() -> None:
    assert apply_preset(SAMPLE, SAMPLE) == SAMPLE


def test_there_and_back_again_changes_no_byte() -> None:
    assert apply_preset(apply_preset(SAMPLE, V0), SAMPLE) == SAMPLE


def test_values_change_and_comments_stay(project: Path) -> None:
    mine = SAMPLE.replace("  T: 128\n", "  T: 128  # mine\n") + "\n# a last word of mine\n"
    (project / "params.yaml").write_text(mine)
    result = CliRunner().invoke(app, ["preset", "v0"])
    assert result.exit_code == 0, result.output
    text = (project / "params.yaml").read_text()
    assert "  T: 256  # mine\n" in text
    assert "# a last word of mine" in text
    assert parse_params(text)[1] == parse_params(V0)[1]
    outside = mine.split("tokenizer:\n")[0] + mine.split("\nshard:\n")[1]  # v0 has another kind of tokenizer
    assert all(line in text for line in outside.splitlines() if line.lstrip().startswith("#"))


def test_a_section_with_other_keys_comes_whole_from_the_preset() -> None:
    current = "# head\na:\n  b: 1  # one\n  gone: 2\nc:\n  d: 1  # kept\n"
    preset = "a:\n  b: 3  # three\n  new: 4\nc:\n  d: 2\n"
    assert apply_preset(current, preset) == "# head\na:\n  b: 3  # three\n  new: 4\nc:\n  d: 2  # kept\n"
    assert apply_preset("", V0) == V0


def test_an_unknown_preset_lists_those_there_are_and_writes_nothing(project: Path) -> None:
    result = CliRunner().invoke(app, ["preset", "v9"])
    assert result.exit_code != 0
    assert "sample, shakespeare, v0" in " ".join(result.output.split())
    assert (project / "params.yaml").read_text() == SAMPLE


def test_summary_before_a_run_says_what_to_do(project: Path) -> None:
    result = CliRunner().invoke(app, ["summary"])
    assert result.exit_code == 1
    assert "dvc repro" in result.output


def test_summary_shows_the_table_a_sample_and_the_places(project: Path) -> None:
    (project / "metrics").mkdir()
    score = {"nats": 1.5, "bits_per_byte": 2.25, "tokens": 1000}
    (project / "metrics/eval.json").write_text(json.dumps({"pretrain": {"val_wiki": score}}))
    mix = {"wiki": {"p": 1.0, "rows": 5, "drawn": 1.0}}
    (project / "metrics/train.json").write_text(json.dumps({"parameters": 10, "tokens": 20, "mix": mix}))
    (project / "metrics/samples.md").write_text("# Samples\n\n## Why?\n\n```text\nonce upon\n```\n")
    output = CliRunner().invoke(app, ["summary"]).output
    assert "val_wiki" in output
    assert "2.2500" in output
    assert "once upon" in output
    assert "Asked: Why?" in output
    assert "models/pretrain" in output
