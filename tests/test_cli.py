"""Tests of the niels-gpt commands: what they print, and how they report files that are missing or damaged."""

import copy
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml
from typer.testing import CliRunner

from niels_gpt.checkpoint import load_model, save_checkpoint
from niels_gpt.cli import console
from niels_gpt.cli.app import app
from niels_gpt.cli.console import apply_preset, complete_preset, keep_copy, read_preset
from niels_gpt.cli.inspect import mark_chat
from niels_gpt.cli.run import Board, closing_lines
from niels_gpt.cli.summary import compare_runs
from niels_gpt.config import ModelConfig, to_dict
from niels_gpt.data.types import Document
from niels_gpt.files.checks import sha256_file
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline.params import parse_params
from niels_gpt.pipeline.stage import Inputs, Stage
from niels_gpt.pipeline.yaml_files import parse_yaml
from niels_gpt.tokenizer.tokenizers import ByteTokenizer
from niels_gpt.train.state import RunFolder, RunState
from stages import cache as cache_stage
from stages import leak, load, split, tokenize, tokenizer
from tests.conftest import ROOT, TINY, keep_sample, with_values_in_place
from tests.in_process import no_duplicates, write_source

SAMPLE = (ROOT / "params.yaml").read_text()


@cache
def preset_text(name: str) -> str:
    return read_preset(ROOT / "presets", name)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "presets", tmp_path / "presets")
    shutil.copy(ROOT / "params.yaml", tmp_path / "params.yaml")
    keep_sample(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_preset_on_itself_changes_no_byte() -> None:
    assert apply_preset(SAMPLE, SAMPLE) == SAMPLE


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["v0", "v1", "v2", "v3", "shakespeare"])
def test_there_and_back_again_changes_no_byte(preset: str) -> None:
    assert apply_preset(apply_preset(SAMPLE, preset_text(preset)), SAMPLE) == SAMPLE


def test_a_preset_is_the_sample_where_it_says_nothing_else() -> None:
    sample = (
        "# head\nsources:\n  a:\n    input: x  # where\n    split:\n      by: given\n  b:\n    input: y\n\n"
        "# sizes\nmodel:\n  T: 1  # context\n  C: 2\ntokenizer:\n  # pieces\n  kind: pieces\n  size: 3\n\n"
        "# words\neval:\n  prompts:\n    - one\n\n  # at most\n  B: 4\n"
    )
    preset = (
        "sources:\n  c: {input: z, split: {by: given}}\n  a: {split: {by: tree, seed: 1}}\nmodel:\n  T: 5\n"
        "tokenizer:\n  # bytes\n  kind: byte\neval:\n  prompts:\n    - two\n    - three\n"
    )
    assert complete_preset(preset, sample=sample) == (
        "# head\nsources:\n  a:\n    input: x  # where\n    split: {by: tree, seed: 1}\n"
        "  c: {input: z, split: {by: given}}\n\n"
        "# sizes\nmodel:\n  T: 5  # context\n  C: 2\ntokenizer:\n  # bytes\n  kind: byte\n\n"
        "# words\neval:\n  prompts:\n    - two\n    - three\n\n  # at most\n  B: 4\n"
    )
    assert complete_preset(SAMPLE, sample=SAMPLE) == SAMPLE


def test_a_preset_may_be_based_on_another(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("a: 1\nb: {c: 2, d: 3}\np_val: {x: 1.0}\n")
    blob = subprocess.check_output(["git", "hash-object", tmp_path / "params.yaml"], text=True)
    tmp_path = tmp_path / "presets"
    tmp_path.mkdir()
    (tmp_path / "sample.yaml").write_text(f"blob: {blob}")
    (tmp_path / "first.yaml").write_text("b: {c: 4}\np_val: {y: 1.0}\n")
    (tmp_path / "second.yaml").write_text("based_on: first\nb: {d: 5}\n")
    assert parse_yaml(read_preset(tmp_path, "second"), name="") == {"a": 1, "b": {"c": 4, "d": 5}, "p_val": {"y": 1.0}}
    (tmp_path / "small.yaml").write_text("based_on: second\nb: {c: 6}\n")
    assert parse_yaml(read_preset(tmp_path, "small"), name="") == {"a": 1, "b": {"c": 6, "d": 5}, "p_val": {"y": 1.0}}


@pytest.mark.slow
def test_values_change_and_comments_stay(project: Path) -> None:
    mine = SAMPLE.replace("  T: 128\n", "  T: 128  # mine\n") + "\n# a last word of mine\n"
    (project / "params.yaml").write_text(mine)
    result = CliRunner().invoke(app, ["preset", "v0"])
    assert result.exit_code == 0, result.output
    text = (project / "params.yaml").read_text()
    assert "  T: 256  # mine\n" in text
    assert "# a last word of mine" in text
    assert parse_params(text)[1] == parse_params(preset_text("v0"))[1]
    # v0 has no dialogues and another kind of tokenizer.
    outside = mine.split("  dialogues:\n")[0] + mine.split("\nduplicates: ")[1]
    assert all(line in text for line in outside.splitlines() if line.lstrip().startswith("#"))


@pytest.mark.slow
def test_presets_keep_ones_own_sources_and_put_public_text_beside_them(project: Path) -> None:
    text = {"use": "text", "input": "/n", "remote": "private", "val_name": "val_n"}
    text |= {"split": {"by": "document", "val_frac": 0.1}}
    text |= {"load": {"kind": "text"}, "budget": {"max_train_tokens": None, "max_val_tokens": None}}
    own = {"a": text, "b": {**text, "input": "/m", "val_name": "val_m"}}
    values = {"sources": {**own, "dolly15k": parse_yaml(SAMPLE, name="")["sources"]["dolly15k"]}}
    values |= {"p_train": {"a": 0.75, "b": 0.25}, "p_val": {"a": 1.0, "b": 0.0}, "p_sft": {"dolly15k": 1.0}}
    (project / "params.yaml").write_text(yaml.safe_dump(parse_yaml(SAMPLE, name="") | values))
    assert "your own sources stay" in run("preset", "v2")
    raw = parse_params((project / "params.yaml").read_text())[1]
    assert list(raw["sources"]) == ["wiki", "primer", "dolly15k", "oasst1", "fineweb_edu", "a", "b"]
    assert raw["p_train"] == {"wiki": 0.0, "primer": 0.02, "fineweb_edu": 0.784, "a": 0.147, "b": 0.049}
    assert raw["p_val"] == {"a": 0.75, "b": 0.25}
    assert raw["sources"]["a"]["input"] == "/n"
    run("preset", "sample")
    written = (project / "params.yaml").read_text()
    assert parse_yaml(written, name="") == parse_yaml(SAMPLE, name="")


def test_a_section_with_other_keys_comes_whole_from_the_preset() -> None:
    current = "# head\na:\n  b: 1  # one\n  gone: 2\nold: 5\nc:\n  d: 1  # kept\n"
    preset = "a:\n  b: 3  # three\n  new: 4\nc:\n  d: 2\n"
    assert apply_preset(current, preset) == "# head\na:\n  b: 3  # three\n  new: 4\nc:\n  d: 2  # kept\n"
    assert apply_preset("", preset_text("v0")) == preset_text("v0")
    assert "\ntokenizer: {kind: byte, corpus: data/no-input.md}\n" in apply_preset(SAMPLE, preset_text("v0"))


@pytest.mark.slow
def test_the_sample_comes_back_from_git_to_the_byte(project: Path) -> None:
    """This works without a commit of params.yaml in git, and whatever was written since."""
    run("preset", "v0")
    assert (project / "params.yaml").read_text() != SAMPLE
    assert read_preset(project / "presets", "sample") == SAMPLE
    run("preset", "sample")
    assert (project / "params.yaml").read_text() == SAMPLE
    shutil.rmtree(project / ".git")
    run("preset", "sample")  # needs no git: the file is the sample
    (project / "params.yaml").write_text("a: 1\n")
    assert "git here has no" in refusal("preset", "sample")
    assert (project / "params.yaml").read_text() == "a: 1\n"


@pytest.mark.slow
def test_all_parameters_are_printed_with_their_help_and_are_those_of_the_file(project: Path) -> None:
    shown = run("params")
    assert parse_params(shown)[0] == parse_params(SAMPLE)[0]
    assert parse_yaml(shown, name="") == parse_params(SAMPLE)[1]
    assert "  # Adam's memory of the gradient's square\n  beta2: 0.95\n" in shown
    (project / "params.yaml").write_text(with_values_in_place(SAMPLE, {"seed": 7, "train.seed": 8}))
    values = parse_yaml(run("params"), name="")
    assert (values["train"]["seed"], values["sft"]["seed"], values["sources"]["roam"]["split"]["seed"]) == (8, 7, 7)
    (project / "params.yaml").write_text("seeed: 1\n")
    assert "seeed is not a parameter; did you mean seed?" in refusal("params")


def test_an_unknown_preset_lists_those_there_are_and_writes_nothing(project: Path) -> None:
    result = CliRunner().invoke(app, ["preset", "v9"])
    assert result.exit_code != 0
    assert "sample, shakespeare, v0" in " ".join(result.output.split())
    assert (project / "params.yaml").read_text() == SAMPLE


@pytest.mark.slow
def test_a_preset_keeps_what_it_writes_over_and_says_so(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(project.parent))
    said = run("preset", "v0")
    assert (
        "params.yaml as it was is kept as params.yaml.kept-1: `mv params.yaml.kept-1 params.yaml` restores it" in said
    )
    assert (project / "params.yaml.kept-1").read_text() == SAMPLE
    assert "kept" not in run("preset", "v0")  # nothing changes, so no copy
    file = Path("params.yaml")
    for text, number in (("b: 2\n", 2), (SAMPLE, 1), ("c: 3\n", 3), ("b: 2\n", 2)):
        file.write_text(text)
        kept = keep_copy(file)
        assert kept == Path(f"params.yaml.kept-{number}")
        assert kept.read_text() == text
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    shutil.copy(ROOT / ".gitignore", project)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "params"]):
        subprocess.run([*git, *command], check=True)
    assert keep_copy(file) is None  # it is committed
    file.write_text("d: 4\n")
    assert keep_copy(file) == Path("params.yaml.kept-4")
    assert subprocess.check_output([*git, "status", "--porcelain"], text=True) == " M params.yaml\n"  # copies ignored
    file.unlink()
    assert keep_copy(file) is None


def test_the_help_of_preset_lists_all(project: Path) -> None:
    (project / "presets/mine.yaml").write_text("# mine: what I like. And more.\nmodel:\n  T: 64\n")
    shown = " ".join(run("preset", "--help").split())
    for preset in (ROOT / "presets").glob("*.yaml"):
        assert f" {preset.stem}: " in shown
    assert " mine: what I like " in shown
    assert "And more" not in shown
    shutil.rmtree(project / "presets")
    assert "Run it in the project's folder." in run("preset", "--help")


def test_the_version_is_that_of_the_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run("--version") == f"niels-gpt {declared}\n"


def test_a_broken_sample_is_named_and_nothing_is_written(project: Path) -> None:
    broken = project / "presets/sample.yaml"
    for text in ("", "model: {T: 1\n", SAMPLE, "blob: 1\n", f"blob: {'0' * 40}\n"):
        broken.write_text(text)
        result = CliRunner().invoke(app, ["preset", "v0"])
        assert result.exit_code == 1
        assert "presets/sample.yaml" in result.output
        assert "Traceback" not in result.output
    assert (project / "params.yaml").read_text() == SAMPLE


def test_summary_before_a_run_says_what_to_do(project: Path) -> None:
    result = CliRunner().invoke(app, ["report", "--text"])
    assert result.exit_code == 1
    assert "dvc repro" in result.output


def test_summary_shows_the_table_a_sample_and_the_places(project: Path) -> None:
    (project / "metrics").mkdir()
    score = {"nats": 1.5, "bits_per_byte": 2.25, "tokens": 1000}
    (project / "metrics/eval.json").write_text(
        json.dumps({"pretrain": {"val_wiki": score}, "card": {"sft": {"form": 0.5}}})
    )
    mix = {"wiki": {"p": 1.0, "rows": 5, "drawn": 1.0}}
    (project / "metrics/train.json").write_text(json.dumps({"parameters": 10, "tokens": 20, "mix": mix}))
    (project / "metrics/samples.md").write_text("# Samples\n\n## Why?\n\n```text\nonce upon\n```\n")
    output = CliRunner().invoke(app, ["report", "--text"]).output
    assert "val_wiki" in output
    assert "2.2500" in output
    assert "form" not in output.partition("Question")[0]
    assert "once upon" in output
    assert "Question: Why?" in output
    assert "models/pretrain" in output


# The tests below need the files of a finished run: the stages make the data, and the models are untrained.

TEXTS = {"wiki": 5, "roam": 9, "primer": 3}  # lines per document of each source
SCORES = {
    "pretrain": {"val_wiki": {"nats": 1.5, "bits_per_byte": 2.25, "tokens": 1000}},
    "card": {"sft": {"form": 0.5}},
}
TRAINED = {"parameters": 10, "tokens": 20, "mix": {"wiki": {"p": 1.0, "rows": 5, "drawn": 0.25}}}
SAMPLES = "# Samples\n\n## Why?\n\n```text\nonce upon\n```\n"


def own_source(name: str) -> dict[str, Any]:
    return {"kind": "text"} if name in TEXTS else {"kind": "chat"}


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        chats = ("dolly15k", "oasst1", "dialogues")
        by_document = {"by": "document", "val_frac": 0.25, "seed": 1}
        values: dict[str, object] = {}
        for name in (*TEXTS, *chats):
            own = {"input": f"data/{name}", "load": own_source(name), "split": by_document}
            values |= {f"sources.{name}.{key}": value for key, value in own.items()}
        Path("params.yaml").write_text(with_values_in_place(SAMPLE, {**TINY, **values}))
        params, _ = parse_params(Path("params.yaml").read_text())
        for name, lines in TEXTS.items():
            Path("data", name).mkdir(parents=True)
            for i in range(4):
                Path("data", name, f"{i}.txt").write_text(f"text {i} of {name}\n" * lines)
        for name in chats:
            turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": f"ho {name}"}]
            Path("data", name).mkdir()
            Path("data", name, "chats.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 4)
        Path("data/no-input.md").touch()

        def run(stage_main: Any, name: str, key: str = "") -> None:
            stage = Stage(name=name, key=key, params=params, inputs=Inputs({}, {}))
            stage_main(stage)
            stage.publishing.close()

        run(tokenizer.main, "tokenizer")
        for key in (*TEXTS, *chats):
            run(load.main, "load", key)
            no_duplicates(key, params)
            for module in (split, tokenize):
                run(module.main, module.__name__, key)
        run(cache_stage.main, "cache")
        torch.manual_seed(0)
        cfg = ModelConfig.from_section(params.model.model_dump(), V=260)
        for name in ("pretrain", "sft"):
            save_checkpoint(f"models/{name}/best.pt", GPT(cfg), None, 1, to_dict(cfg))
        Path("metrics").mkdir(exist_ok=True)
        Path("metrics/eval.json").write_text(json.dumps(SCORES))
        Path("metrics/train.json").write_text(json.dumps(TRAINED))
        Path("metrics/samples.md").write_text(SAMPLES)
        run(leak.main, "leak")
    return root


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    shutil.copytree(finished_once, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    return tmp_path / "run"


def run(*command: str) -> str:
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return result.output


def refusal(*command: str) -> str:
    """Run a command that must fail, and return its error message, a single line."""
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1, (command, result.output, result.exception)
    assert isinstance(result.exception, SystemExit), result.exc_info
    (line,) = result.stderr.splitlines()
    assert line.startswith("ERROR: ")
    return line


@contextmanager
def full_disk(most_bytes: int) -> Iterator[None]:
    """Limit the size of every file inside the context: longer writes fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Without this, Python would truncate the bytecode of modules it imports here, and not notice.
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = writes


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_inspect_mix_shows_how_often_each_source_is_sampled(finished: Path) -> None:
    weights = {"wiki": 3.0, "roam": 1.0, "primer": 0.0}
    text = (finished / "params.yaml").read_text()
    (finished / "params.yaml").write_text(with_values_in_place(text, {"p_train": weights}))
    shown = run("inspect", "mix").splitlines()[1:]
    rows = {line.split()[0]: line.split()[1:] for line in shown[:3]}
    assert set(rows) == set(weights)
    tokens = {name: len(b"text 0 of \n" + name.encode()) * lines * 3 + 3 for name, lines in TEXTS.items()}
    drawn = 40 * 8 * 32  # steps, B and T of TINY
    for name, share in {"wiki": 0.75, "roam": 0.25, "primer": 0.0}.items():
        times = f"{drawn * share / tokens[name]:.2f}"
        assert rows[name] == [f"{weights[name]:g}", f"{share:.3f}", f"{tokens[name]:,}", times]
    often = [name for name in rows if float(rows[name][-1]) > 16]
    assert 0 < len(often) < 3
    assert [line.split(" epochs")[0] for line in shown[3:]] == [
        f"note: {name} is sampled for {float(rows[name][-1]):.1f}" for name in often
    ]


@pytest.mark.slow
def test_a_rate_as_dvc_writes_it_is_a_number(finished: Path) -> None:
    """`dvc exp run -S train.base_lr=1e-5` writes 1e-05 to params.yaml, which YAML 1.1 parses as a string."""
    text = (finished / "params.yaml").read_text()
    written = text.replace("  base_lr: 0.008\n", "  base_lr: 1e-05\n", 1).replace("{wiki: 0.69,", "{wiki: 5e-01,")
    written = written.replace("  min_lr: 0.0002\n", "  min_lr: 1e-06\n", 1)
    assert written.count("1e-05") == written.count("5e-01") == 1
    (finished / "params.yaml").write_text(written)
    assert "wiki             0.5" in run("inspect", "mix")
    shown = run("doctor")
    assert "BAD" not in shown
    assert "train will take about" in shown


@pytest.mark.slow
def test_a_batch_is_shown_with_its_sources(finished: Path) -> None:
    text = (finished / "params.yaml").read_text()
    weights = {"wiki": 0.0, "roam": 1.0, "primer": 0.0}
    (finished / "params.yaml").write_text(with_values_in_place(text, {"p_train": weights}))
    shown = run("inspect", "batch", "--rows", "3", "--no-color")
    assert shown.count("--- row ") == shown.count(": roam, window ") == 3
    assert "of roam\n" in shown
    assert "of wiki" not in shown
    assert shown != run("inspect", "batch", "--rows", "3", "--step", "1", "--no-color")
    assert shown == run("inspect", "batch", "--rows", "3", "--no-color")


def test_chats_are_shown_with_what_is_learned_marked(finished: Path) -> None:
    shown = run("inspect", "batch", "--sft", "--n", "2", "--no-color")
    assert shown.count("<usr>hi<eot><asst>«ho dolly15k<eot>»\n") == 2
    assert shown.count("<usr>hi<eot><asst>«ho oasst1<eot>»\n") == 2


def test_documents_are_shown_with_name_and_size(finished: Path) -> None:
    shown = run("inspect", "documents", "roam", "--n", "2")
    assert shown.startswith("4 documents in roam\n")
    assert shown.count("--- ") == 2
    assert f"1.txt ({len('text 1 of roam') * 9 + 9} bytes)" in shown
    assert "loaded: dialogues, dolly15k, oasst1, primer, roam, wiki" in refusal("inspect", "documents", "news")
    assert "oasst1 is a source of chats: `niels-gpt inspect batch --sft` shows them" in refusal(
        "inspect", "documents", "oasst1"
    )


def test_text_does_not_command_the_terminal(finished: Path) -> None:
    """Documents, chats and samples are untrusted: an escape sequence in them could retitle, clear or paste."""
    escape = "\x1b]0;owned\x07\x9b2J"
    write_source("roam", [Document(id=f"a{escape}", text=f"b{escape}")])
    (finished / "metrics/samples.md").write_text(SAMPLES.replace("Why", f"Why{escape}").replace("once", escape))
    ids = ByteTokenizer().encode(f"x{escape}")
    shown = [
        run("inspect", "documents", "roam"),
        run("report", "--text"),
        run("inspect", "tokenizer", "--line", escape),
        mark_chat(ByteTokenizer(), ids, [False] * len(ids), color=False),
    ]
    for text in shown:
        assert "\\x1b" in text
        assert not set(text) & set("\x1b\x07\x9b")


def test_the_tokenizer_report_counts_bytes(finished: Path) -> None:
    lines = run("inspect", "tokenizer", "--line", "a b").splitlines()
    (roam,) = (line for line in lines if line.startswith("roam"))
    text = sum(len(f"text {i} of roam\n") * 9 for i in range(3))
    assert roam.split()[1:3] == [f"{text + 3}", f"{text / (text + 3):.3f}"]  # one end-of-text id per document
    assert lines[0] == "V = 260"
    assert lines[-1] == "3 tokens: [a] [·] [b]"


DAMAGE = {
    "empty": b"",
    "cut short": b'{"sources": {"wi',
    "of another shape": b'{"sources": {"wiki": 1}, "pretrain": {"val_wiki": {}}}',
    "a list": b"[1]",
    "not text": b"\xff\xfe{}",
    "deep": b"[" * 100_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_result_is_named(finished: Path, damage: bytes) -> None:
    shutil.copy(ROOT / "dvc.yaml", finished)
    for command, file in (
        (["report", "--text"], "metrics/eval.json"),
        (["report", "--text"], "metrics/train.json"),
        (["export", "away"], "metrics/eval.json"),
        (["export", "away"], "cache/mix.json"),
        (["export", "away"], "cache/chat_mix.json"),
        (["inspect", "mix"], "cache/mix.json"),
        (["inspect", "batch"], "cache/mix.json"),
        (["inspect", "batch", "--sft"], "cache/chat_mix.json"),
        (["inspect", "batch", "--sft"], "models/pretrain/config.json"),
    ):
        good = (finished / file).read_bytes()
        (finished / file).write_bytes(damage)
        line = refusal(*command)
        assert file in line, (command, line)
        assert "dvc repro" in line
        (finished / file).unlink()
        assert file in refusal(*command)
        (finished / file).write_bytes(good)
    assert not (finished / "away").exists()


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"\xff"])
def test_a_damaged_tokenizer_is_named(finished: Path, damage: bytes) -> None:
    (finished / "cache/tokenizer/tokenizer.json").write_bytes(damage)
    for command in (["inspect", "tokenizer"], ["inspect", "batch", "--sft"], ["inspect", "batch"]):
        assert "cache/tokenizer/tokenizer.json" in refusal(*command)


@pytest.mark.parametrize("damage", [b"", b"odd", b"\xff\xff"], ids=["empty", "odd", "ids that V has not"])
def test_damaged_tokens_are_named(finished: Path, damage: bytes) -> None:
    (finished / "cache/tokens/text/roam/train/part-00000.bin").write_bytes(damage)
    assert "cache/tokens/text/roam/train/part-00000.bin" in refusal("inspect", "tokenizer")


def test_samples_that_are_no_text_are_named(finished: Path) -> None:
    (finished / "metrics/samples.md").write_bytes(b"\xff\xff")
    assert "metrics/samples.md is not UTF-8" in refusal("report", "--text")
    (finished / "metrics/samples.md").write_bytes(b"")
    assert "Question: " in run("report", "--text")


BROKEN_PARAMS = {
    "a NUL": (b"a: \0\n", "not valid YAML"),
    "an object of Python's": (b"a: !!python/object/apply:os.mkdir [ran]\n", "not valid YAML at line 1"),
    "not UTF-8": (b"a: \xff\n", "not UTF-8 text (byte 4)"),
    "a key twice": (b"a: 1\na: 2\n", 'at line 2, column 1: found duplicate key "a"'),
    "cut short": (b"a: [1,\n", "not valid YAML at line 2"),
}
NO_PARAMS = {"empty": b"", "a list": b"- a\n- b\n", "a word": b"word\n", "comments": b"# nothing\n"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *BROKEN_PARAMS.values(),
        *((text, "holds no parameters: `niels-gpt preset sample`") for text in NO_PARAMS.values()),
    ],
    ids=[*BROKEN_PARAMS, *NO_PARAMS],
)
def test_an_invalid_params_file_is_refused_by_every_command(finished: Path, text: bytes, words: str) -> None:
    (finished / "params.yaml").write_bytes(text)
    for command in (["inspect", "mix"], ["inspect", "batch"], ["export", "away"]):
        line = refusal(*command)
        assert "params.yaml" in line
        assert words in line
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert words in result.output
    assert not {path.name for path in finished.iterdir()} & {"away", "ran"}


@pytest.mark.parametrize(("text", "words"), BROKEN_PARAMS.values(), ids=BROKEN_PARAMS)
def test_a_preset_does_not_overwrite_what_it_cannot_read(project: Path, text: bytes, words: str) -> None:
    (project / "params.yaml").write_bytes(text)
    line = refusal("preset", "v0")
    assert words in line
    assert (project / "params.yaml").read_bytes() == text


@pytest.mark.slow
@pytest.mark.parametrize("text", NO_PARAMS.values(), ids=NO_PARAMS)
def test_a_preset_replaces_what_holds_no_parameters(project: Path, text: bytes) -> None:
    (project / "params.yaml").write_bytes(text)
    run("preset", "v0")
    assert (project / "params.yaml").read_text() == preset_text("v0")


@pytest.mark.slow
def test_a_preset_that_makes_no_sense_is_refused_by_its_own_name(project: Path) -> None:
    (project / "presets/mine.yaml").write_text(with_values_in_place(SAMPLE, {"model.H": 3}))
    assert "presets/mine.yaml: model.H: C=128 is not a multiple of H=3" in refusal("preset", "mine")
    for text, words in (
        ("model:\n  H: 3\n", "model.H: C=128 is not a multiple of H=3"),
        ("model:\n  width: 3\n", "model.width is not a parameter"),
        ("model: 3\n", "model is 3"),
        ("model: [", "is not valid YAML at line"),
        ("model: {T: 8}\nmodel: {T: 9}\n", 'found duplicate key "model"'),
    ):
        (project / "presets/mine.yaml").write_text(text)
        line = refusal("preset", "mine")
        assert line.startswith("ERROR: presets/mine.yaml")
        assert words in line
    assert (project / "params.yaml").read_text() == SAMPLE


@pytest.mark.slow
def test_a_full_disk_is_named_and_leaves_all_as_it_was(finished: Path) -> None:
    shutil.copytree(ROOT / "presets", finished / "presets")
    keep_sample(finished)
    before = files_below(finished)
    for command, name in ((["preset", "v0"], "params.yaml"), (["export", "away"], "away/model.safetensors")):
        with full_disk(2000):
            line = refusal(*command)
        assert name in line
        assert "File too large" in line
    with full_disk(2000):
        assert "away/model.safetensors" in refusal("export", "away", "--transformers")
    assert files_below(finished) == before


@pytest.mark.slow
def test_a_place_that_cannot_be_written_to_is_named(finished: Path) -> None:
    before = files_below(finished)
    assert "params.yaml: " in refusal("export", "params.yaml/away")
    assert "/dev/full" in refusal("export", "/dev/full/away")
    assert "models exists: name a new folder" in refusal("export", "models")
    mixed = (
        ["--transformers", "--gguf"],
        ["--f32"],
        ["--transformers", "--f32"],
        ["--q8"],
        ["--gguf", "--f32", "--q8"],
    )
    for forms in mixed:
        assert "choose one format: --transformers" in refusal("export", "away", *forms)
    assert files_below(finished) == before


def test_a_run_ends_with_what_the_model_can_do_within_25_lines(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    board = Board(["train"])
    phases = len(board.phases) + 1  # the last line names the log
    lines = "\n".join(closing_lines(parse_params((finished / "params.yaml").read_text())[0])).splitlines()
    assert phases + len(lines) <= 25
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].startswith("Your model ")
    at = lines.index("Three samples at temperature 0.8:")
    assert [line.startswith("  > ") for line in lines[at + 1 : at + 5]] == [True, True, True, False]
    assert lines[-3].startswith("chat     niels-gpt chat")


COMMANDS = (
    *(["doctor", "--params"], ["doctor", "--no-speed"], ["doctor", "--fix", "--params"], ["run"], ["report", "--text"]),
    *(
        ["sample", "x"],
        ["--help"],
        ["--version"],
        ["params"],
        ["report"],
        ["store", "--prune"],
        ["store", "--checkpoints"],
    ),
    *(["inspect", "mix"], ["inspect", "batch"], ["inspect", "batch", "--sft"], ["inspect", "documents", "roam"]),
    *(["inspect", "documents", "--duplicates"], ["inspect", "tokenizer"], ["store"], ["export", "away"], ["compare"]),
    *(["chat"], ["preset", "v0"], ["preset", "--help"], ["join", "train"], ["init", "data"], ["inspect", "bases"]),
    *(["find", "x"], ["trace", "x"], ["report", "--to", "wandb"], ["benchmark", "blimp", "--from", "nowhere/nothing"]),
)


def test_every_command_is_tried_here() -> None:
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    names = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    served = {"serve", "new", "upgrade"}  # serve never ends: test_talk.py; the others: test_new.py
    assert {*names, *groups} - {command[0] for command in COMMANDS} == served


def leaves_of(command: object, *names: str) -> list[str]:
    inner = getattr(command, "commands", {}).items()
    return [leaf for name, below in inner for leaf in leaves_of(below, *names, name)] or [" ".join(names)]


def test_there_are_at_most_18_commands_and_inspect_has_five_views() -> None:
    there = leaves_of(typer.main.get_command(app))
    assert {"doctor", "report", "store"} <= set(there)
    assert len({name.split()[0] for name in there}) <= 18
    views = {name.split()[1] for name in there if " " in name}
    assert views == {"bases", "batch", "documents", "mix", "tokenizer"}


@pytest.mark.slow
def test_a_former_name_names_the_new_command_and_runs_it(finished: Path) -> None:
    (finished / "dvc.yaml").touch()
    there = leaves_of(typer.main.get_command(app))
    for old, new in console.ALIASES.items():
        assert old not in there
        assert any(f"{new} ".startswith(f"{name} ") for name in there)
        result = CliRunner().invoke(app, [*old.split(), "--help"])
        assert result.stderr == f"`niels-gpt {old}` is now `niels-gpt {new}`\n"
        assert result.stdout == CliRunner().invoke(app, [*new.split(), "--help"]).stdout
    former = CliRunner().invoke(app, ["inspect", "sft", "--n", "2", "--no-color"])
    assert former.stdout == run("inspect", "batch", "--sft", "--rows", "2", "--no-color")


@pytest.mark.slow
def test_with_an_empty_params_file_no_command_shows_a_traceback(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", raising(EOFError()))
    for command in COMMANDS:
        (finished / "params.yaml").write_text("")
        result = CliRunner().invoke(app, command)
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exc_info)
        assert result.exit_code in (0, 1, 2)


def raising(error: Exception) -> Any:
    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.mark.slow
def test_a_closed_pipe_ends_a_command_quietly(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe of `niels-gpt report | true` is closed; Python's flush at exit must not complain about it again."""
    monkeypatch.setattr("builtins.input", lambda _: print("> ", flush=True) or "hi")
    said = 0
    for command in COMMANDS:
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w") as pipe, monkeypatch.context() as patch, io.StringIO() as errors:
            patch.setattr(sys, "stdout", pipe)
            patch.setattr(sys, "stderr", errors)
            with pytest.raises(SystemExit):
                app(command)
            sys.stdout.flush()
            assert "Traceback" not in errors.getvalue(), (command, errors.getvalue())
            said += not errors.getvalue()
            patch.undo()
            with suppress(BrokenPipeError):
                pipe.close()
    assert said >= 15  # the others report an error of their own: there is no repository here


def test_what_a_terminal_cannot_write_is_shown_by_number(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (finished / "metrics/samples.md").write_text("# Samples\n\n## Why?\n\n\u2603 and \ufffd\n")
    with io.TextIOWrapper(io.BytesIO(), encoding="latin-1") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        with pytest.raises(SystemExit) as end:
            app(["report", "--text"])
        patch.undo()
        terminal.flush()
        shown = terminal.buffer.getvalue()
    assert end.value.code == 0
    assert b"\\u2603 and \\ufffd" in shown


@pytest.mark.slow
def test_a_folder_without_a_model_is_told_those_that_have_one(finished: Path) -> None:
    run("export", "away")
    (finished / "other").mkdir()
    (finished / "other/config.json").write_text("{}")  # of another program
    for command in (["sample", "x"], ["chat"], ["serve"], ["export", "again"]):
        line = refusal(*command, "--model", "nope")
        assert line == "ERROR: nope holds no model; these do: models/pretrain, models/sft, away"
    (finished / "dvc.yaml").write_text("stages: {}\n")
    shutil.rmtree(finished / "models/sft")  # a stage writes this one, so the error says how
    assert "models/sft holds no model yet" in refusal("chat")


@pytest.mark.slow
def test_the_card_says_how_it_is_used_and_under_what_licences(finished: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed: no card of a GGUF was written")
    (finished / "data/LICENSE").write_text("\n# MIT | License\n\nmore\n")
    (finished / "data/roam/COPYING.txt").write_text("All rights reserved\n")
    text = (finished / "params.yaml").read_text()
    hub = {"kind": "wikitext", "dataset": "Salesforce/wikitext", "config": "x", "revision": None}
    (finished / "params.yaml").write_text(
        with_values_in_place(text, {"sources.wiki.load": hub, "sources.wiki.split": {"by": "given"}})
    )
    card = run_and_read_card("my model", "--i-know")
    licences = {row.split(" | ")[0][2:]: row.split(" | ")[-1][:-2] for row in card.splitlines() if "` | " in row}
    assert licences == {"wiki": "CC BY-SA 3.0 and GFDL", "roam": "All rights reserved", "primer": "MIT \\| License"}
    assert "niels-gpt chat --model 'my model'\n" in card
    assert 'AutoTokenizer.from_pretrained("hf")' in run_and_read_card("hf", "--transformers", "--i-know")
    assert "ollama create half -f Modelfile" in run_and_read_card("half", "--gguf", "--i-know")


def test_store_names_checkpoints_that_it_cannot_delete(finished: Path) -> None:
    folder = RunFolder(finished / "elsewhere")
    with folder.locked():
        folder.save(RunState(step=1, model={"w": torch.ones(2)}, optimizer={}))
    folder.finish()
    (finished / "checkpoints").mkdir()
    (finished / "checkpoints/run").symlink_to(finished / "elsewhere")
    assert "symbolic link" in refusal("store", "--checkpoints")
    assert (finished / "elsewhere/state.pt").is_file()


def test_an_export_says_where_it_is_and_is_whole(finished: Path) -> None:
    assert run("export", "away").startswith("away holds sft, ")
    assert {path.name for path in (finished / "away").iterdir()} == {
        "README.md",
        "SHA256SUMS",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    card = (finished / "away/README.md").read_text()
    mixed = json.loads((finished / "cache/mix.json").read_text())["sources"]
    for name, weight in {"wiki": 0.69, "roam": 0.26, "primer": 0.05}.items():
        (file,) = mixed[name]["train"]["parts"]
        assert f"| {name} | {weight} | {mixed[name]['train']['tokens']:,} | 1 | `{file['sha256']}` |" in card
    assert "| pretrain | val_wiki | 1.5000 | 2.2500 |" in card


@pytest.mark.slow
def test_an_export_of_a_model_that_recites_private_text_needs_i_know(finished: Path) -> None:
    whole = json.loads((finished / "metrics/leak.json").read_text())
    assert "| roam | sft | 0 | all " in run_and_read_card("first")
    whole["details"][0]["sources"]["roam"]["sft"]["extractable_passages"] = 3
    (finished / "metrics/leak.json").write_text(json.dumps(whole))
    line = refusal("export", "away")
    assert "sft recites private text verbatim: 3 of " in line
    assert " passages of roam (metrics/leak.html shows them)" in line
    assert not (finished / "away").exists()
    assert "| roam | sft | " in run_and_read_card("second", "--i-know")
    assert "| roam | pretrain | " in run_and_read_card("third", "--model", "models/pretrain")  # recites nothing
    text = (finished / "params.yaml").read_text()
    (finished / "params.yaml").write_text(with_values_in_place(text, {"p_train.roam": 0.0}))
    assert "public sources only" in run_and_read_card("fourth")


@pytest.mark.slow
def test_an_export_without_a_measured_extraction_needs_i_know(finished: Path) -> None:
    whole = json.loads((finished / "metrics/leak.json").read_text())
    measured = whole["details"][0]["measured"]
    measured["sft"] = measured["pretrain"]  # as if measured on other weights
    for write in (
        lambda: (finished / "metrics/leak.json").write_text(json.dumps(whole)),
        (finished / "metrics/leak.json").unlink,
    ):
        write()
        line = refusal("export", "away")
        assert "private text (roam), and extraction was not measured: run `dvc repro leak`" in line
    assert "was not measured" in run_and_read_card("away", "--i-know")


def run_and_read_card(folder: str, *options: str) -> str:
    run("export", folder, *options)
    return Path(folder, "README.md").read_text()


@pytest.mark.slow
def test_refuse_if_extractable_finds_a_memorized_document(finished: Path) -> None:
    secret, unknown = Path("secret.md"), Path("unknown.md")
    secret.write_text("the tide comes at four " * 4)
    unknown.write_text("zebras quarrel, vexed jackals whisper: " * 2)
    run("export", "first", "--refuse-if-extractable", str(secret), "--refuse-if-extractable", str(unknown))
    rows = torch.tensor([list(secret.read_bytes()[start : start + 20]) for start in range(40)])
    model = GPT(replace(load_model("models/sft/best.pt", "cpu").cfg, dropout=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_checkpoint("models/sft/best.pt", model, None, 1, to_dict(model.cfg))
    line = refusal(
        "export", "away", "--i-know", "--refuse-if-extractable", str(secret), "--refuse-if-extractable", str(unknown)
    )
    assert "sft recites secret.md (" in line
    assert "unknown.md" not in line
    assert not Path("away").exists()
    run("export", "away", "--i-know", "--refuse-if-extractable", str(unknown))
    secret.write_text("a")
    assert "secret.md has 1 tokens, too few to test" in refusal(
        "export", "x", "--i-know", "--refuse-if-extractable", str(secret)
    )
    assert "no.md" in refusal("export", "x", "--i-know", "--refuse-if-extractable", "no.md")


@pytest.mark.slow
def test_an_export_for_others_is_whole_or_not_there(finished: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed: no GGUF was written")
    before = files_below(finished)
    with full_disk(2000):
        assert "away: File too large" in refusal("export", "away", "--gguf")
    assert files_below(finished) == before
    for name, options in (("hf", ["--transformers"]), ("half", ["--gguf"]), ("full", ["--gguf", "--f32"])):
        assert run("export", name, *options).startswith(f"{name} holds sft, ")
    assert {path.name for path in (finished / "hf").iterdir()} == {
        "README.md",
        "SHA256SUMS",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    for name in ("half", "full"):
        files = {path.name for path in (finished / name).iterdir()}
        assert files == {"Modelfile", "README.md", "SHA256SUMS", "model.gguf"}
    for name in ("hf", "half", "full"):
        listed = [line.split("  ") for line in (finished / name / "SHA256SUMS").read_text().splitlines()]
        found = {path.name for path in (finished / name).iterdir()} - {"SHA256SUMS"}
        assert {file for _, file in listed} == found
        for digest, file in listed:
            assert digest == sha256_file(finished / name / file)
    assert (finished / "half/model.gguf").stat().st_size < (finished / "full/model.gguf").stat().st_size


def test_doctor_says_everything_that_is_wrong_at_once(finished: Path) -> None:
    """It reports mistakes in the file and around it, and exits with 1 but without a message on stderr."""
    wrong = {
        "trian": {},
        "train.base_lr": "fast",
        "model.dropout": 1.5,
        "sources.wiki.load": {"kind": "books"},
        "sources.primer.input": "..",
        "splice.spans.alpah": 1,
        "runtime.compile": "maybe",
    }
    (finished / "params.yaml").write_text(with_values_in_place((finished / "params.yaml").read_text(), wrong))
    shutil.rmtree(finished / "data/roam")
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert result.stderr == ""
    bad = [line for line in result.output.splitlines() if line.startswith("BAD ")]
    for words in (
        "trian is not a parameter; did you mean train?",
        "train.base_lr is 'fast'",
        "model.dropout is 1.5",
        "sources.wiki.load: kind must be one of",
        "sources.primer.input: the project itself lies in there",
        "splice.spans.alpah is not a parameter; did you mean alpha?",
        "runtime.compile is 'maybe'",
        "sources.roam.input is data/roam, which does not exist",
    ):
        assert sum(words in line for line in bad) == 1, (words, result.output)
    assert len(bad) == 8


@pytest.mark.slow
def test_doctor_of_a_finished_run_finds_nothing(finished: Path) -> None:
    shown = run("doctor", "--no-speed")
    assert "BAD" not in shown
    for words in ("roam: data/roam (0.0 MB)", "models/pretrain: trained", "disk: "):
        assert words in shown
    text = (finished / "params.yaml").read_text()
    text = text.replace("base_lr: 0.008", "base_lr: 1e-05", 1).replace("min_lr: 0.0002", "min_lr: 1e-06")
    (finished / "params.yaml").write_text(text)  # as DVC writes the numbers
    assert "BAD" not in run("doctor", "--no-speed")
    assert "roam" in run("inspect", "mix")


def lock(**hashes: str) -> dict[str, Any]:
    """Return the four stages of a dvc.lock; `hashes` replaces the hashes of outputs, code or parameters."""
    of = {"raw": "1", "mix": "2", "model": "3", "code": "4", "params": "5", **hashes}

    def file(path: str, md5: str) -> dict[str, Any]:
        return {"path": path, "md5": md5, "size": 1}

    return {
        "code": {"cmd": "x", "deps": [file("stages", of["code"])], "outs": [file("cache/code", of["code"])]},
        "load@roam": {
            "cmd": "x",
            "deps": [file("data/roam", "0"), file("cache/code/load/roam.json", "6")],
            "outs": [file("cache/raw", of["raw"])],
        },
        "cache": {
            "cmd": "x",
            "deps": [file("cache/raw/roam", of["raw"])],
            "outs": [file("cache/mix.json", of["mix"])],
        },
        "train": {
            "cmd": "x",
            "deps": [file("cache/mix.json", of["mix"]), file("cache/code/train.json", of["code"])],
            "params": {"params.yaml": {"seed": of["params"]}},
            "outs": [file("models/pretrain", of["model"])],
        },
    }


def write_lock(folder: Path, stages: dict[str, Any]) -> None:
    (folder / "dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": stages}) + "\n")


@pytest.mark.parametrize(
    ("hashes", "data", "weights"),
    [
        (
            {},
            "The data match the committed run byte for byte.",
            "The weights and their metrics match the committed run",
        ),
        (
            {"model": "x"},
            "The data match the committed run byte for byte.",
            "as expected on another type of CPU, which rounds differently: models/pretrain.",
        ),
        (
            {"model": "x", "code": "x"},
            "The data match the committed run byte for byte.",
            "differ from the committed run, since parameters, code or inputs of train differ",
        ),
        (
            {"model": "x", "params": "x"},
            "The data match the committed run byte for byte.",
            "since parameters, code or inputs of train differ: models/pretrain",
        ),
        (
            {"raw": "x", "model": "x"},
            "The data differ from the committed run, although all inputs are equal: cache/raw.",
            "differ from the committed run, since the data differ: models/pretrain.",
        ),
    ],
)
def test_summary_says_what_came_out_as_committed(
    finished: Path, hashes: dict[str, str], data: str, weights: str
) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    write_lock(finished, lock())
    for command in (["init", "-q"], ["add", "dvc.lock"], ["commit", "-qm", "run"]):
        subprocess.run([*git, *command], check=True)
    write_lock(finished, lock(**hashes))
    told = [line for line in run("report", "--text").splitlines() if "committed" in line]
    assert len(told) == 2
    assert data in told[0]
    assert weights in told[1]


def test_summary_offers_a_baseline_and_make_records_it(finished: Path) -> None:
    names = {f"GIT_{role}_{what}": "t@t" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def git(*arguments: str) -> str:
        return subprocess.check_output(["git", *arguments], text=True, env={**os.environ, **names})

    for name in ("Makefile", ".gitignore"):
        shutil.copy(ROOT / name, finished)
    write_lock(finished, lock())
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "run")
    assert "baseline" not in run("report", "--text")
    write_lock(finished, lock(model="x"))
    (finished / "metrics/eval.json").write_text(json.dumps({"pretrain": {}}))
    (finished / "metrics/new.tsv").write_text("x\n")
    (finished / "params.yaml").write_text((finished / "params.yaml").read_text() + "# mine\n")
    (finished / "diary.txt").write_text("mine")
    before = git("rev-parse", "HEAD")
    said = run("report", "--text")
    assert (
        "This run is not in git yet (dvc.lock, metrics/eval.json and 1 more).\n`make baseline` commits these files only"
        in said
    )
    assert git("rev-parse", "HEAD") == before  # nothing was committed unasked
    git("add", "diary.txt")
    make = ["make", "--no-print-directory", "baseline"]
    subprocess.run(make, check=True, capture_output=True, env={**os.environ, **names, "MAKEFLAGS": ""})
    assert git("rev-parse", "HEAD~1") == before
    changed = git("show", "--name-only", "--format=").split()
    assert changed == ["dvc.lock", "metrics/eval.json", "metrics/new.tsv", "params.yaml"]
    assert "baseline" not in run("report", "--text")


def test_an_output_that_is_gone_is_a_difference() -> None:
    without: Any = copy.deepcopy(lock())
    del without["train"]
    for now, committed in ((lock(), without), (without, lock())):
        data, weights = compare_runs(now, committed)
        assert "byte for byte" in data
        assert weights.endswith("of train differ: models/pretrain.")


@pytest.mark.slow
def test_summary_is_silent_where_nothing_can_be_compared(finished: Path) -> None:
    assert "committed" not in run("report", "--text")  # no git, no dvc.lock
    write_lock(finished, lock())
    assert "committed" not in run("report", "--text")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert "committed" not in run("report", "--text")  # no commit
    without_mix: Any = copy.deepcopy(lock())
    del without_mix["cache"]
    for committed in ("", "- a", "{stages: [1]}", "schema: '2.0'\nstages:\n  cache: 1\n", without_mix):
        if isinstance(committed, str):
            (finished / "dvc.lock").write_text(committed)
        else:
            write_lock(finished, committed)
        for command in (["add", "dvc.lock"], ["commit", "-qm", "run", "--allow-empty"]):
            subprocess.run([*git, *command], check=True)
        write_lock(finished, lock())
        assert "committed" not in run("report", "--text"), committed
