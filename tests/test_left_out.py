"""Tests of disabled stages, and of a run on a user's own text alone: no chats, none of the sample's sources."""

import contextlib
import importlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from niels_gpt.cli.app import app
from niels_gpt.cli.doctor import examine
from niels_gpt.cli.sizing import seconds_to_train
from niels_gpt.files.atomic import write_json
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import parse_params
from niels_gpt.pipeline.results import read_metrics
from niels_gpt.pipeline.stage import Stage, execute
from niels_gpt.pipeline.training import join_training
from niels_gpt.pipeline.yaml_files import parse_yaml
from stages import report as report_stage
from tests.conftest import ITERATED, ROOT, STAGES, Repo, make_repo

pytestmark = pytest.mark.slow

# The one source of a run as in the README's "Your own notes": no chats, three stages disabled.
NOTES = {
    "use": "text",
    "input": "notes",
    "remote": "private",
    "val_name": "val_notes",
    "load": {"kind": "text"},
    "split": {"by": "document", "val_frac": 0.3, "seed": 1},
    "budget": {"max_train_tokens": None, "max_val_tokens": None},
}
LEFT_OUT = ("sft", "splice", "memorize")


def run_as_dvc_would(stage: Stage) -> None:
    """Run a stage, after checking that all its dependencies exist."""
    assert [dep for dep in stage.inputs.deps if not Path(dep).exists()] == []
    importlib.import_module(f"stages.{stage.name}").main(stage)


@pytest.fixture(scope="module")
def own_text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a checkout in which every stage of dvc.yaml has run in this process, with the dependencies it declares."""
    path = make_repo(tmp_path_factory.mktemp("own-text") / "repo").path
    shutil.rmtree(path / "data")
    (path / "data").mkdir()
    shutil.copy(ROOT / "data/no-input.md", path / "data")  # DVC watches it where a stage has no input file
    (path / "notes").mkdir()
    for i in range(8):
        text = " ".join(f"word{i}{n} and{n * i}" for n in range(30))
        (path / "notes" / f"{i}.md").write_text(f"# Note {i}\n\n{text}\n")
    values = parse_yaml((path / "params.yaml").read_text(), name="params.yaml")
    values |= {"sources": {"notes": NOTES}, "p_train": {"notes": 1.0}, "p_val": {"notes": 1.0}}
    values["p_sft"] = {}
    values["splice"]["dataset_name"] = "notes"
    values["train"] |= {"total_steps": 2, "eval_every": 2, "warmup_steps": 1}
    for stage in LEFT_OUT:
        values[stage]["run"] = False
    (path / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    threads = torch.get_num_threads()
    with contextlib.chdir(path):
        for name in STAGES:
            execute(name, "notes" if name in ITERATED else "", run_as_dvc_would)
        yield path
    torch.set_num_threads(threads)


def test_a_disabled_stage_writes_only_a_marker_and_later_stages_omit_it(own_text: Path) -> None:
    for folder in (layout.TUNED, layout.SPLICED, layout.EXTRACTION):
        assert [path.name for path in folder.iterdir()] == [layout.LEFT_OUT]
    for stage in LEFT_OUT:
        assert json.loads(Path(f"metrics/{stage}.json").read_text()) == {}
    scores, leak = (read_metrics(path) for path in (layout.SCORES, layout.LEAK))
    assert list(scores.pop(layout.CARD)) == ["pretrain"]
    assert set(scores) == {"pretrain", *layout.YARDSTICKS}
    assert all(list(table) == ["val_notes"] for table in scores.values())
    assert list(leak["measured"]) == list(leak["sources"]["notes"]) == ["pretrain"]
    assert json.loads(layout.CHAT_MIX.read_text())["sources"] == {}
    report, samples = layout.REPORT.read_text(), layout.SAMPLES.read_text()
    assert "sft" not in report.split("<script>")[0].replace("sha256", "")
    for page in (report, samples):
        assert "The pretrained model continues" in page
        assert "The fine-tuned model answers" not in page
    data = json.loads(report.split('id="data">')[1].split("</script>")[0])
    assert [run["name"] for run in data["runs"]] == ["train"]
    assert "<tbody></tbody>" not in report


def test_a_table_without_rows_is_not_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of private text is omitted if all text is public, since then nothing is measured."""
    monkeypatch.chdir(tmp_path)
    names = ("documents", "exact", "near", "clusters", "left_out", "runs_in_train", "characters_in_train")
    counts = dict.fromkeys(names, 0)
    write_json(layout.DATA, {"notes": counts})
    write_json(layout.LEAK, {"sources": {}, "canaries": None})
    assert list(report_stage.tables_of([["number"]], {})) == ["Duplicates"]


def run(*command: str, said: str = "") -> str:
    result = CliRunner().invoke(app, command, input=said)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_the_commands_take_the_pretrained_model_and_say_so(own_text: Path) -> None:
    run("doctor", "--params")
    note = "no fine-tuned model in models/sft: using models/pretrain"
    assert note in run("chat", "--max-tokens", "2", said="hello\n")
    assert note in run("export", "away", "--i-know")
    assert "(chats)" not in Path("away/README.md").read_text()
    shutil.rmtree("away")
    assert note not in run("sample", "Note", "--max-tokens", "2")
    shown = run("report", "--text")
    assert "Prompt: " in shown
    assert "models/pretrain/ (best.pt" in shown
    refused = CliRunner().invoke(app, ["inspect", "batch", "--sft"])
    assert refused.exit_code == 1
    assert "params.yaml has no source of chats" in refused.output


def test_nobody_waits_for_a_disabled_stage(own_text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another host refuses to join it instead of waiting forever, and doctor does not estimate its time."""
    for name, value in {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("niels_gpt.pipeline.training.run_ranks", lambda *_, **__: pytest.fail("it waits"))
    for stage in ("sft", "splice"):
        with pytest.raises(ValueError, match=rf"{stage}\.run is false"):
            join_training(stage)
    params = parse_params(Path("params.yaml").read_text())[1]
    assert "models/sft: skipped, since sft.run is false" in [found.what for found in examine(params)]
    monkeypatch.setattr("niels_gpt.cli.sizing._MEASURED_S", 0.01)
    monkeypatch.setattr("niels_gpt.cli.sizing.build_step", lambda *_, **__: lambda *_, **__: torch.zeros(()))
    assert list(seconds_to_train(params)) == ["train"]


@pytest.mark.dag
def test_disabling_a_stage_reruns_it_and_its_dependents(built_repo: Repo) -> None:
    built_repo.set(sft__run=False)
    assert built_repo.repro("sft") == ["sft"]
    due = json.loads(built_repo.run("dvc", "status", "--json").stdout)
    assert sorted(due) == ["eval", "leak", "report"]
