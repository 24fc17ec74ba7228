"""dvc.yaml says what is true of the code."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stages.yaml12 import parse_yaml
from tests.conftest import ROOT
from tests.imports import INFRASTRUCTURE, closure

STAGES: dict[str, dict[str, Any]] = {
    name: stage.get("do", stage)
    for name, stage in parse_yaml((ROOT / "dvc.yaml").read_text(), name="dvc.yaml")["stages"].items()
}


def module_of(stage: str) -> str:
    """Sources of text and sources of chats go through the same code, as stages of their own."""
    return stage.removesuffix("_chat")


@pytest.mark.parametrize("name", STAGES)
def test_code_a_stage_runs_is_in_its_deps_file_by_file(name: str) -> None:
    declared = {dep for dep in STAGES[name]["deps"] if dep.endswith(".py")}
    assert declared == closure(ROOT / f"stages/{module_of(name)}.py", ROOT)


def test_every_stage_module_is_a_stage_or_infrastructure() -> None:
    modules = {path.stem for path in (ROOT / "stages").glob("*.py")} - {"__init__"}
    infrastructure = {path.removeprefix("stages/").removesuffix(".py") for path in INFRASTRUCTURE if "stages/" in path}
    assert modules == {module_of(name) for name in STAGES} | infrastructure | {
        "training"
    }  # shared by train, sft and splice


@pytest.mark.parametrize("name", STAGES)
def test_only_the_key_of_a_source_reaches_the_shell(name: str) -> None:
    assert re.fullmatch(rf"python -m stages\.{module_of(name)}( \$\{{key\}})?", STAGES[name]["cmd"])


@pytest.mark.parametrize("name", STAGES)
def test_no_stage_declares_runtime_and_no_out_is_named_by_a_value(name: str) -> None:
    assert not any(param.split(".")[0] == "runtime" for param in STAGES[name].get("params", []))
    outs = [
        out if isinstance(out, str) else next(iter(out))
        for kind in ("outs", "metrics", "plots")
        for out in STAGES[name].get(kind, [])
    ]
    assert not any("${item" in out for out in outs)
    assert all(not out.startswith(("/", "..")) for out in outs)


def test_everything_made_of_a_source_goes_to_that_sources_remote() -> None:
    for name in ("load", "load_chat", "split", "split_chat", "tokenize", "tokenize_chat", "shard"):
        for out in STAGES[name]["outs"]:
            assert next(iter(out.values())) == {"remote": "${item.remote}"}


def test_the_library_knows_nothing_of_the_stages_or_of_dvc() -> None:
    for path in (ROOT / "niels_gpt").rglob("*.py"):
        assert not re.search(r"^\s*(?:from|import) (?:stages|dvc)\b", path.read_text(), flags=re.MULTILINE), path


def test_what_is_made_of_all_sources_goes_to_no_public_remote() -> None:
    """Private notes may be in pieces, in a mix and in a model: these go to the default remote, the private one."""
    assert "remote = private" in (ROOT / ".dvc/config").read_text()
    for name in ("tokenizer", "mix", "train", "sft", "eval"):
        for out in STAGES[name].get("outs", []):
            assert isinstance(out, str), out
