"""Tests of `niels-gpt init`: surveys, plans, the params.yaml it writes, and refusals that leave no trace."""

import math
import os
import re
import shutil
import subprocess
from dataclasses import replace
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel
from typer.testing import CliRunner

from niels_gpt.cli import init as init_module
from niels_gpt.cli import plan as plan_module
from niels_gpt.cli.app import app
from niels_gpt.cli.console import Setting, with_settings
from niels_gpt.cli.plan import FEW_DOCUMENTS, OwnChats, Plan, plan_text, source_names
from niels_gpt.cli.plan_base import ChosenBase
from niels_gpt.cli.sizing import SIZES, Machine, Outlook, Pace, fit_run, vocabulary_for
from niels_gpt.cli.survey import Survey, describe, survey_folder
from niels_gpt.config import ModelConfig
from niels_gpt.data.corpus.mix import exposures, read_too_often
from niels_gpt.files.messages import format_duration
from niels_gpt.model.size import BYTES, Ability, bytes_per_token, most_epochs
from niels_gpt.pipeline.params import Params, parse_params
from niels_gpt.pipeline.repository import without_dvc
from niels_gpt.pipeline.yaml_files import default_at, parse_yaml
from niels_gpt.tokenizer.training import train_sentencepiece
from tests.conftest import ROOT
from tests.surveys import BUNDLED, ENGLISH, GPU, LAPTOP, SAMPLE, VALUES, a_survey, chats_of, planned, write
from tests.talkers import put

RUNTIME = parse_params(SAMPLE)[1]["runtime"]


def texts_of(raw: dict[str, Any]) -> dict[str, Any]:
    return {name: source for name, source in raw["sources"].items() if source["use"] == "text"}


@pytest.mark.slow
def test_what_is_planned_obeys_every_rule_whatever_the_text_and_the_time() -> None:
    """A plan is valid, ends in time, and repeats no text more often than `doctor` accepts."""
    for size, hours in product((2e3, 2e4, 2e5, 1e6, 6e6, 4e7, 6e8, 1e10), (0.1, 1.0, 24.0)):
        case = round(math.log10(size) + hours)
        documents = (1, 7, 3000, 2_000_000)[case % 4]
        surveys = [a_survey(int(size), min(documents, int(size) // 100))]
        if case % 2 and size > 1e5:
            surveys.append(a_survey(int(size / 9), 40, path="/home/me/letters", characters=3000, words=10))
        machine = GPU if case % 3 == 0 else LAPTOP
        if size / 1e6 > 2000 * hours:  # reading takes a second per MB
            with pytest.raises(ValueError, match="are too short, the least run"):
                planned(*surveys, machine=machine, hours=hours)
            continue
        plan = planned(*surveys, machine=machine, hours=hours)
        params, raw = parse_params(plan_text(plan, SAMPLE), name="planned")
        assert set(texts_of(raw)) == set(raw["p_train"]) == {"notes", "letters"} & set(raw["sources"])
        assert raw["splice"]["dataset_name"] in raw["sources"]
        assert all(source.private for source in params.texts.values())
        a_token = bytes_per_token(raw["tokenizer"]["vocab_size"]) if "vocab_size" in raw["tokenizer"] else 1.0
        shares = {name: _trained_share(source) for name, source in texts_of(raw).items()}
        tokens = {
            name: survey.text_bytes * shares[name] / a_token
            for name, survey in zip(texts_of(raw), surveys, strict=True)
        }
        steps, rows, T = raw["train"]["total_steps"], raw["train"]["B"], raw["model"]["T"]
        seen = exposures(raw["p_train"], tokens, drawn=steps * rows * T)
        assert not read_too_often(seen, most=most_epochs(plan.run.parameters, in_epochs=True))
        assert raw["train"]["warmup_steps"] <= steps // 2
        assert raw["train"]["min_lr"] < raw["train"]["base_lr"]
        assert raw["train"]["eval_every"] <= steps
        assert sum(plan.seconds.values()) <= 3600 * hours
        # A window fits into the held-out text of every source.
        for name, survey in zip(texts_of(raw), surveys, strict=True):
            assert survey.text_bytes * (1 - shares[name]) / a_token > T + 1


def _trained_share(source: dict[str, Any]) -> float:
    return 1 - float(source["load"].get("held_out_tail") or source["split"]["val_frac"])


@pytest.mark.slow
def test_more_time_and_more_text_make_a_larger_model_and_no_text_a_larger_one_than_it_can_feed() -> None:
    sizes = [planned(a_survey(2_000_000, 500), hours=hours).run.parameters for hours in (0.1, 1, 24)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    small = [planned(a_survey(200_000, 500), hours=hours, machine=GPU).run for hours in (0.1, 24)]
    assert [run.cfg.C for run in small] == [128] * 2
    assert small[0].steps == small[1].steps  # limited by the number of epochs that helps
    assert small[1].limited_by == "text"
    assert fit_run(1e9, V=16128, machine=LAPTOP, seconds=600).limited_by == "time"


def test_reasons_stand_in_the_file_and_nothing_of_the_samples_text_does() -> None:
    text = plan_text(planned(a_survey(3_000_000, 900)), SAMPLE)
    raw = parse_yaml(text, name="planned")
    assert list(texts_of(raw)) == ["notes"]
    assert chats_of(raw) == BUNDLED
    assert "data/wikitext" not in text
    assert "data/roam" not in text
    for reason in ("900 documents, so whole ones are held out", "scaling law", "epochs", "By size"):
        assert reason in text
    samples_own = "The text is small and read nine times"
    assert samples_own in SAMPLE
    assert samples_own not in text
    assert [line for line in text.splitlines() if len(line) > 120] == []
    assert text == plan_text(planned(a_survey(3_000_000, 900)), SAMPLE)


def test_chats_of_ones_own_take_the_place_of_the_samples() -> None:
    chats = (OwnChats("/home/me/chats.jsonl", "chat", 500), OwnChats("/home/me/talks.txt", "dialogues", 20))
    _, raw = parse_params(plan_text(planned(a_survey(3_000_000, 900), chats=chats), SAMPLE), name="planned")
    assert {name: chat["load"]["kind"] for name, chat in chats_of(raw).items()} == {
        "chats": "chat",
        "talks": "dialogues",
    }
    assert set(raw["p_sft"]) == set(chats_of(raw))


@pytest.mark.slow
def test_whatever_is_ones_own_is_private_masked_and_kept_on_this_machine() -> None:
    for size, documents, kinds in product((3e4, 3e6, 6e8), (3, 900), ((), ("chat",), ("dialogues", "chat"))):
        surveys = [
            a_survey(int(size), documents),
            a_survey(int(size / 2), documents, path="/b/letters", glob="*", faults=("x",)),
        ]
        chats = tuple(OwnChats(f"/home/me/{kind}s", kind, 500) for kind in kinds)
        params, raw = parse_params(plan_text(planned(*surveys, chats=chats), SAMPLE), name="planned")
        assert set(texts_of(raw)) == {"notes", "letters"}
        for source in params.texts.values():
            assert (source.private, source.remote, source.on_secret) == (True, "private", "mask")
        for source in texts_of(raw).values():
            assert source["load"]["on_secret"] == "mask"  # the default, written out so that the owner sees it
        if chats:
            assert set(chats_of(raw)) == {f"{kind}s" for kind in kinds}
            for chat in params.chats.values():
                assert (chat.private, chat.remote, chat.on_secret) == (True, "private", "mask")
                assert chat.split.val_frac == 0.1
        else:
            assert chats_of(parse_yaml(plan_text(planned(*surveys), SAMPLE), name="planned")) == BUNDLED


@pytest.mark.slow
def test_every_number_of_a_plan_follows_from_the_text_the_machine_and_the_hours() -> None:
    for machine, size, hours in product((LAPTOP, GPU), (4e4, 3e6, 4e8), (0.3, 8.0)):
        surveys = [
            a_survey(int(size), 900),
            a_survey(int(size / 4), 300, path="/b/letters", sizes=(10, int(size / 50))),
        ]
        chats = (OwnChats("/home/me/notes.jsonl", "chat", 500),)
        for own in ((), chats):
            plan = planned(*surveys, machine=machine, hours=hours, chats=own)
            text = plan_text(plan, SAMPLE)
            _, raw = parse_params(text, name="planned")
            run, model, train = plan.run, raw["model"], raw["train"]
            assert raw["p_train"] == raw["p_val"] == pytest.approx({"notes": 0.8, "letters": 0.2}, abs=1e-3)
            for survey, source in zip(surveys, texts_of(raw).values(), strict=True):
                share = min(0.1, 1e6 / survey.text_bytes)
                assert 1 - _trained_share(source) == pytest.approx(max(0.001, share), rel=0.06)  # rounded to two digits
            assert list(chats_of(raw)) == (["notes_2"] if own else list(BUNDLED))  # names are unique
            assert ("Who are you?" in raw["eval"]["questions"]) is (bool(own) or "Who are you?" in _questions())
            assert (model["T"], model["C"], model["d_ff"]) == (run.cfg.T, run.cfg.C, 4 * run.cfg.C)
            assert model["C"] == model["H"] * run.cfg.D
            assert model["dropout"] == (0.15 if run.epochs > 4 else 0.1 if run.epochs > 1.5 else 0.0)
            for section in (train, raw["sft"], raw["splice"]["train"]):
                assert section["precision"] == ("bf16" if machine.cuda else "float32")
                assert 0 < section["min_lr"] < section["base_lr"] < 0.02
                assert 1 <= section["eval_every"] <= section["total_steps"]
            assert train["base_lr"] == pytest.approx(0.1 / math.sqrt(model["C"]), rel=0.15)
            assert (train["total_steps"], train["B"]) == (run.steps, run.B)
            assert train["eval_steps"] * (run.steps // train["eval_every"]) <= max(8, 0.1 * run.steps)
            a_step = run.B * run.cfg.T * run.flops / machine.flops
            assert raw["runtime"]["checkpoint_every"] == max(10, min(500, int(120 / a_step)))  # every two minutes
            assert raw["runtime"]["log_every"] == max(1, min(100, run.steps // 50))
            longest = "letters" if surveys[1].longest > surveys[0].longest else "notes"
            assert raw["splice"]["dataset_name"] == longest
            for section in (raw["memorize"], raw["leak"]):
                assert section["prompt_tokens"] == section["chunk_size"] // 2
                assert 4 <= section["chunk_size"] <= min(100, model["T"])
            assert 200 <= raw["leak"]["max_passages"] <= 10_000
            assert 20_000 <= raw["eval"]["max_tokens"] <= 1_000_000
            assert 20 <= raw["sft"]["total_steps"] <= 2000
            assert {len(line) - len(line.lstrip()) for line in text.splitlines()} <= {0, 2, 4, 6}


def _questions() -> list[str]:
    return list(VALUES["eval"]["questions"])


@pytest.mark.slow
def test_few_documents_are_split_at_their_ends_and_many_are_held_out_whole() -> None:
    def split(survey: Survey) -> tuple[Any, Any]:
        (source,) = texts_of(parse_yaml(plan_text(planned(survey), SAMPLE), name="planned")).values()
        return source["split"]["by"], source["load"].get("held_out_tail")

    assert split(a_survey(3_000_000, 11)) == ("given", 0.1)
    assert split(a_survey(3_000_000, 900)) == ("document", None)
    assert split(a_survey(3_000_000, 900, sizes=(10, 2_000_000))) == ("given", 0.1)  # one document is most of the text
    assert split(a_survey(3_000_000_000, 3_000_000)) == ("hash", None)


def test_a_source_too_small_for_a_window_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"has 1,999 bytes of text, too little .*: at least 2,000 are needed"):
        planned(a_survey(1999, 10))
    with pytest.raises(ValueError, match=r"/b holds 3,000 bytes of text, too little for a source of its own: put it"):
        planned(a_survey(50_000_000, 900), a_survey(3000, 3, path="/b"))


def test_names_are_made_of_folders_and_never_used_twice() -> None:
    paths = [
        "/x/My Notes",
        "/y/my-notes",
        "/x/2024",
        "/x/null",
        "/x/日記",
        "/x/dolly",
        "/x/" + "a" * 99,
        '/z/Ærø\'s "it"',
    ]
    names = source_names(paths, taken=["dolly"])
    assert names == ["my_notes", "my_notes_2", "text_2024", "text_null", "text", "dolly_2", "a" * 40, "r_s_it"]


def test_few_documents_leave_rare_words_in_the_vocabulary_and_it_says_so() -> None:
    """Filtering rare words would leave one long journal a vocabulary of characters only."""
    few, many = a_survey(3_000_000, FEW_DOCUMENTS - 1), a_survey(3_000_000, FEW_DOCUMENTS)
    text = plan_text(planned(few), SAMPLE)
    assert "19 documents: too few to filter rare words" in text
    assert parse_yaml(text, name="it")["tokenizer"]["min_documents"] == 1
    assert parse_params(plan_text(planned(many), SAMPLE))[1]["tokenizer"]["min_documents"] == 5
    told = {"commit": "", "removed": (), "chats": True}
    for survey, said in ((few, 1), (many, 0)):
        lines = init_module._summary(planned(survey), Outlook({}, (), "low", Ability.WORDS), **told)
        assert sum("may be in the vocabulary, as may other rare words" in line for line in lines) == said


def test_the_summary_says_that_hours_would_not_help_where_the_text_is_the_limit() -> None:
    told = {"commit": "", "removed": (), "chats": True}
    for hours, limit in ((24.0, "text"), (0.1, "time")):
        plan = planned(a_survey(1_600_000, 300), hours=hours)
        assert plan.run.limited_by == limit
        lines = init_module._summary(plan, Outlook({}, (), "low", Ability.WORDS), **told)
        assert any("more hours would not" in line for line in lines) == (limit == "text")


@pytest.mark.parametrize("size", SIZES)
def test_options_of_the_block_are_for_widths_that_they_have_helped_at(size: ModelConfig) -> None:
    run = replace(fit_run(1e9, V=16128, machine=GPU, seconds=600), cfg=size)
    settings = plan_module._model_settings(run, often=False)
    assert ("model.qk_norm" in settings) == ("model.value_residual" in settings) == (size.C > 128)
    assert ("model.zero_init" in settings) == ("model.logit_cap" in settings) == (size.C > 384)


def test_a_machine_is_as_fast_as_its_matrix_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_gpt.cli.init.matmul_flops", lambda device, precision: 1e11)
    machine = init_module.measure("cpu", threads=torch.get_num_threads())
    assert machine.flops == pytest.approx(3e10)
    assert not machine.cuda


@pytest.mark.slow
def test_a_vocabulary_is_no_larger_than_a_text_has_entries_for() -> None:
    """A larger one could not be trained. A text with many distinct characters gets an entry for each."""
    notes = [path.read_text() for path in sorted((ROOT / "data/roam").rglob("*.md"))]
    found = survey_folder(str(ROOT / "data/roam"))
    V = vocabulary_for(found.text_bytes, characters=found.characters, words=found.words)
    assert V in (512, 1024)
    train_sentencepiece(notes, vocab_size=V)
    train_sentencepiece(notes, vocab_size=V, private=[True] * len(notes), min_documents=5)
    assert vocabulary_for(3e6, characters=90, words=100) == BYTES  # one line, repeated
    assert vocabulary_for(3e4, characters=90, words=4000) == BYTES
    assert vocabulary_for(3e6, characters=90, words=40_000) == 4096
    assert vocabulary_for(3e6, characters=3500, words=40_000) == 8192
    assert vocabulary_for(1e10, characters=90, words=400_000) == 16128


def test_tables_that_cannot_be_read_are_left_out_where_there_is_other_text(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"a.md": ENGLISH * 30, "b.txt": ENGLISH, "t.csv": "id,date\n1,2\n"}
    folder = write(tmp_path / "notes", files)
    found = survey_folder(str(folder))
    assert found.glob == "*.[mt][dx]*"
    assert found.files == {".md": 1, ".txt": 1}
    assert "t.csv has the columns" in describe(found)[-1]
    _, raw = parse_params(plan_text(planned(found), SAMPLE), name="planned")
    assert raw["sources"]["notes"]["load"]["glob"] == found.glob
    (folder / "b.txt").unlink()
    assert survey_folder(str(folder)).glob == "*.md*"
    (folder / "a.md").unlink()
    with pytest.raises(ValueError, match=r"t\.csv has the columns .* name the one to read so"):
        survey_folder(str(folder))


@pytest.mark.slow
def test_values_and_reasons_go_into_the_file_and_the_rest_stays() -> None:
    new = {"model.C": Setting(64, "Small."), "model.qk_norm": Setting(True), "splice.train.B": Setting(3)}
    text = with_settings(SAMPLE, new)
    assert parse_yaml(text, name="x")["model"] == {**VALUES["model"], "C": 64, "qk_norm": True}
    assert parse_yaml(text, name="x")["splice"]["train"]["B"] == 3
    assert "  # Small.\n  C: 64\n" in text
    changed = set(text.splitlines()) ^ set(SAMPLE.splitlines())
    assert changed == {"  # Small.", "  C: 64", "  C: 128", "  qk_norm: true", "    B: 3", "    B: 8"}
    section = with_settings(SAMPLE, {"p_val": Setting({"a": Setting(1, "Only one.")})})
    assert parse_yaml(section, name="x") == {**VALUES, "p_val": {"a": 1}}
    assert "\np_val:\n  # Only one.\n  a: 1\n\ntrain:\n" in section
    braces = with_settings(SAMPLE, {"tokenizer.vocab_size": Setting(500, "Few."), "leak.B": Setting(3)})
    assert "tokenizer:\n  kind: sentencepiece\n  corpus: cache/split/text\n  # Few.\n  vocab_size: 500\n" in braces
    assert "\nleak: {chunk_size: 100, prompt_tokens: 50, canaries: 0, B: 3}\n" in braces
    for value in ("no", "a b", "1e5", 'it\'s "so"', "\n", 1e-7, 0.00625, None, True, [1, "x"], {"a": 0.5}):
        assert parse_yaml(with_settings(SAMPLE, {"eval.seed": Setting(value)}), name="x")["eval"]["seed"] == value


def test_a_reason_takes_the_place_of_the_comment_above_its_key_and_of_no_other() -> None:
    def comments(text: str) -> list[str]:
        return [line.strip() for line in text.splitlines() if line.lstrip().startswith("#")]

    text = "a:\n  # first\n  x: 1  # beside\n  # y\n  y: {p: 1}\n  # z\n  z:\n    - 1\n"
    text += "  # w\n  w:\n    # k\n    k: 1\n\n# b\nb: 1\n"
    assert comments(text) == ["# first", "# y", "# z", "# w", "# k", "# b"]
    for key, gone in (("x", "first"), ("y", "y"), ("z", "z"), ("w.k", "k")):
        new = with_settings(text, {f"a.{key}": Setting(7, "Why.")})
        assert comments(new) == [line.replace(f"# {gone}", "# Why.") for line in comments(text)], key
        assert "x: 7  # beside" in new if key == "x" else "x: 1  # beside" in new
        assert "\n\n# b\nb: 1\n" in new
    whole = with_settings(text, {"a": Setting({"x": Setting(7, "Why.")})})
    assert whole == "a:\n  # Why.\n  x: 7\n\n# b\nb: 1\n"
    last = with_settings(text, {"a.new": Setting(7, "Why.")})
    assert "    k: 1\n  # Why.\n  new: 7\n\n# b\nb: 1\n" in last
    beside = with_settings(
        "# head\n\na:\n  x: 1  # beside\n\nb: 1\n# end\n", {"a.y": Setting(2), "b": Setting(3, "Why.")}
    )
    assert beside == "# head\n\na:\n  x: 1  # beside\n  y: 2\n\n# Why.\nb: 3\n# end\n"


def test_a_key_that_goes_takes_its_comment_along_and_no_other() -> None:
    class Section(BaseModel):
        x: int = 5
        y: int = 5
        z: int = 5
        q: int = 5

    class Shape(BaseModel):
        a: Section

    def without(text: str, *keys: str) -> str:
        return with_settings(text, {f"a.{key}": Setting(5) for key in keys}, shape=Shape)

    text = "a:\n  # x\n  x: 1\n  # y\n  y: 2\n  # z\n  z: {p: 1}\n\n# b\nb: 1\n"
    beside = text.replace("x: 1", "x: 1  # beside").replace("y: 2", "y: 2  # gone")
    assert without(beside, "y") == beside.replace("  # y\n  y: 2  # gone\n", "")
    assert without(text, "y", "q") == text.replace("  # y\n  y: 2\n", "")
    assert without(text, "z") == text.replace("  # z\n  z: {p: 1}\n", "")
    assert without(text, "x") == text.replace("x: 1", "x: 5")  # the first key of a section stays
    why = with_settings(text, {"a.y": Setting(5, "Why.")}, shape=Shape)
    assert why == text.replace("  # y\n  y: 2\n", "  # Why.\n  y: 5\n")


@pytest.mark.slow
def test_a_plan_writes_no_value_without_a_reason_that_is_the_default() -> None:
    for machine, size in product((LAPTOP, GPU), (4e4, 3e6, 4e8)):
        plan = planned(a_survey(int(size), 900), machine=machine)
        raw = parse_yaml(plan_text(plan, SAMPLE), name="planned")
        for key, setting in plan.settings.items():
            *parents, last = key.split(".")
            if not parents:
                continue
            section = reduce(lambda node, part: node[part], parents, raw)
            default = not setting.reason and setting.value == default_at(key, Params)
            assert last not in section if default and last != next(iter(section)) else section[last] == setting.value
        assert list(raw) == list(VALUES)
        assert len(plan_text(plan, SAMPLE).splitlines()) <= 182  # including the survey and the reasons


@pytest.mark.slow
def test_a_value_without_a_reason_takes_no_comment_away() -> None:
    def comments(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.lstrip().startswith("#")]

    for section in ("model", "train", "sft", "splice", "memorize", "leak", "eval", "runtime"):
        plain = {key: value for key, value in VALUES[section].items() if not isinstance(value, dict)}
        text = with_settings(SAMPLE, {f"{section}.{key}": Setting(value) for key, value in plain.items()})
        assert comments(text) == comments(SAMPLE), section
        assert parse_yaml(text, name="x") == VALUES


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a checkout without code, with one commit, and enter it; the machine is not measured and has no base."""
    folder = tmp_path / "project"
    for name in ("presets", "data"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("params.yaml", "dvc.yaml", ".gitignore"):
        shutil.copy(ROOT / name, folder / name)
    (folder / ".dvc").mkdir()
    shutil.copy(ROOT / ".dvc/.gitignore", folder / ".dvc/.gitignore")
    for key in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{key}_NAME", "t")
        monkeypatch.setenv(f"GIT_{key}_EMAIL", "t@example.invalid")
    monkeypatch.setattr(init_module, "measure", lambda *_, **__: LAPTOP)
    monkeypatch.setattr("niels_gpt.base.importing.find_spec", lambda _: None)  # no base is installed
    monkeypatch.chdir(folder)
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "start")
    return folder


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


def notes(folder: Path, *, count: int = 60) -> Path:
    return write(folder, {f"{i}.md": f"# {i}\n\n{ENGLISH * 4}{i * 7919}\n" for i in range(count)})


def ran(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["init", "--no-speed", *map(str, arguments)])


HOSTILE = {
    "missing": (lambda at: at / "nowhere", "nowhere does not exist: give the name of one that does"),
    "a file": (lambda at: write(at, {"a.txt": ENGLISH}) / "a.txt", "a.txt is a file: put it into a folder of its own"),
    "empty": (lambda at: write(at, {"e/.keep": ""}) / "e", "e holds no text: put files of .txt, .md"),
    "binary": (
        lambda at: write(at, {"b/a.bin": b"\0\1", "b/c.png": b"\x89"}) / "b",
        "holds no text, only 1 .bin, 1 .png",
    ),
    "binary text": (lambda at: write(at, {"b/a.txt": os.urandom(5000)}) / "b", "have text extensions but are binary"),
    "blank": (lambda at: write(at, {"b/a.txt": " \n"}) / "b", "are empty: put text there"),
    "too little": (lambda at: write(at, {"b/a.txt": ENGLISH}) / "b", "too little to train and validate on"),
    "newline": (lambda at: notes(at / "a\nb"), "the name is empty or not printable"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_folder_of_text_is_refused_in_a_sentence_and_nothing_is_written(
    case: str, project: Path, tmp_path: Path
) -> None:
    make, sentence = HOSTILE[case]
    folder = make(tmp_path)
    before, head = files_of(project), git("rev-parse", "HEAD")
    result = ran(folder)
    assert result.exit_code == 1
    assert result.stderr.startswith("ERROR: ")
    assert result.stderr.count("\n") == 1
    assert sentence in result.stderr
    assert (files_of(project), git("rev-parse", "HEAD")) == (before, head)


WRITTEN_HERE = ("cache", "models", "metrics", "checkpoints", "logs", ".git", ".dvc")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "FOLDER: the name is empty or not printable: give the file or folder with the text"),
        (" ", "FOLDER: the name is empty or not printable: give the file or folder with the text"),
        (".", ".: the project itself lies in there: put the text in a folder of its own"),
        ("../project", "../project: the project itself lies in there: put the text in a folder of its own"),
        ("..", "..: the project itself lies in there: put the text in a folder of its own"),
        ("/", "/: the project itself lies in there: put the text in a folder of its own"),
        ("cache/raw/notes", "cache/raw/notes: cache/ is no place for text, the pipeline or its tools write it"),
        *((name, f"{name}: {name}/ is no place for text, the pipeline or its tools write it") for name in WRITTEN_HERE),
    ],
)
def test_places_that_cannot_hold_text_are_refused_before_anything_is_read(
    name: str, sentence: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in ("read_sample", "survey_folder", "source_kinds"):
        monkeypatch.setattr(init_module, step, lambda *_: pytest.fail("something was read"))
    good = notes(tmp_path / "notes")
    for arguments in ([name], [good, name], [good, "--chat", name]):
        result = ran(*arguments)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert result.stderr.startswith(f"ERROR: {sentence}")
        assert "params.yaml" not in result.stderr


@pytest.mark.slow
def test_folders_that_would_be_read_twice_or_published_are_refused(project: Path, tmp_path: Path) -> None:
    one = notes(tmp_path / "notes")
    (tmp_path / "link").symlink_to(one)
    notes(one / "sub")
    os.mkfifo(notes(tmp_path / "pipe") / "x.md")
    tracked = notes(project / "mine")
    before, head = files_of(project), git("rev-parse", "HEAD")
    for folders, sentence in (
        ([one, tmp_path / "link"], "are nested and would be loaded twice"),
        ([one, one / "sub"], "are nested and would be loaded twice"),
        ([tmp_path / "pipe"], "x.md is a FIFO, no file: remove it"),
        ([tracked], "mine lies in the project's folder and git does not ignore it: `echo '/mine' >> .gitignore`"),
    ):
        result = ran(*folders)
        assert (result.exit_code, sentence in result.stderr) == (1, True), result.stderr
    git("add", "mine")
    assert "mine is tracked by git" in ran(tracked).stderr
    assert (files_of(project), git("rev-parse", "HEAD")) == (before, head)


def test_without_git_or_dvc_or_with_changes_of_ones_own_it_says_what_to_do(project: Path, tmp_path: Path) -> None:
    folder = notes(tmp_path / "notes")
    params = project / "params.yaml"
    text = params.read_text()
    params.write_text(text + "# mine\n")
    assert "`git commit -m mine params.yaml` keeps them" in ran(folder).stderr
    assert params.read_text() == text + "# mine\n"
    params.write_text(text)
    shutil.rmtree(project / ".dvc")
    assert "`dvc init`" in ran(folder).stderr
    (project / ".dvc").mkdir()
    (project / ".git").rename(tmp_path / "git")
    assert "`git init && git add -A" in ran(folder).stderr
    (project / "dvc.yaml").unlink()
    assert "run this in the project's folder" in ran(folder).stderr
    assert params.read_text() == text


@pytest.mark.slow
def test_it_writes_and_commits_params_yaml_alone_and_keeps_the_one_before(project: Path, tmp_path: Path) -> None:
    """The input is two folders with the same unusual name, and one that git ignores."""
    odd = notes(tmp_path / 'a/it\'s "my" notes #1: ${x}')
    twin = notes(tmp_path / 'b/it\'s "my" notes #1: ${x}')
    (project / ".roam-data").symlink_to(notes(tmp_path / "linked"))
    before = (project / "params.yaml").read_text()
    write(project, {"other.txt": "staged"})
    git("add", "other.txt")
    result = ran(odd, twin, ".roam-data", "--hours", "0.5")
    assert result.exit_code == 0, result.output
    assert git("show", "--name-only", "--format=").split() == ["params.yaml"]
    assert git("status", "--porcelain") == "A  other.txt\n"  # the ignored link is not listed
    (back,) = re.findall("undo     `git checkout (.*) params.yaml`", result.output)
    assert git("show", f"{back}:params.yaml") == before
    text = (project / "params.yaml").read_text()
    raw = parse_yaml(text, name="params.yaml")
    assert [(name, source["input"]) for name, source in texts_of(raw).items()] == [
        ("it_s_my_notes_1_x", str(odd)),
        ("it_s_my_notes_1_x_2", str(twin)),
        ("roam_data", ".roam-data"),
    ]
    assert re.search(r"takes    about .* of the 0\.5 h here: data stages .*, train .*, sft .*", result.output)
    assert ran(odd, twin, ".roam-data", "--hours", "0.5").output.count(", unchanged") == 1
    assert CliRunner().invoke(app, ["doctor", "--params"]).exit_code == 0
    assert ran(odd).exit_code == 0
    assert git("show", "HEAD~1:params.yaml") == text


STAY = (
    "raw/dolly15k/manifest.json",
    "raw/notes/manifest.json",
    "split/chat/dolly15k/split.json",
    "tokenizer/tokenizer.json",
)
GO = ("manifests/wiki.json", "raw/wiki/part-00000.parquet", "split/text/roam/split.json", "tokens/text/wiki/a.bin")


@pytest.mark.slow
def test_what_cache_holds_of_other_sources_goes_and_the_rest_stays(project: Path, tmp_path: Path) -> None:
    write(project / "cache", {file: file for file in (*STAY, *GO)})
    for file in (*STAY, *GO):
        put(file.encode())
    result = ran(notes(tmp_path / "notes"))
    assert "removed  cache/ of roam, wiki; DVC's cache still has it" in result.output
    assert sorted(files_of(project / "cache")) == sorted(STAY)
    assert "removed " not in ran(notes(tmp_path / "notes"), "--hours", "2").output


@pytest.mark.slow
def test_what_dvc_does_not_have_stays(project: Path, tmp_path: Path) -> None:
    """An output is kept whole if DVC's cache lacks one of its files, as after a stopped run or `dvc gc`."""
    write(project / "cache", {file: file for file in (*GO, "tokens/text/wiki/b.bin")})
    for file in (*GO[:2], "tokens/text/wiki/b.bin"):
        put(file.encode())
    assert "removed  cache/ of wiki; DVC's cache still has it" in ran(notes(tmp_path / "notes")).output
    assert sorted(files_of(project / "cache")) == sorted((*GO[2:], "tokens/text/wiki/b.bin"))


def test_while_dvc_is_at_work_nothing_is_written(project: Path, tmp_path: Path) -> None:
    before = (project / "params.yaml").read_text()
    with without_dvc(project):
        result = ran(notes(tmp_path / "notes"))
    assert result.exit_code == 1
    assert "DVC is running here: wait for it, then try again" in result.stderr
    assert (project / "params.yaml").read_text() == before


def test_where_git_refuses_the_file_is_as_it_was(project: Path, tmp_path: Path) -> None:
    before = (project / "params.yaml").read_text()
    hook = project / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho not today >&2\nexit 1\n")
    hook.chmod(0o755)
    result = ran(notes(tmp_path / "notes"))
    assert result.exit_code == 1
    assert "git would not commit params.yaml (not today)" in result.stderr
    assert (project / "params.yaml").read_text() == before
    assert git("status", "--porcelain") == ""


@pytest.mark.slow
def test_runtime_settings_of_the_machine_are_kept_and_chats_are_counted(project: Path, tmp_path: Path) -> None:
    params = project / "params.yaml"
    params.write_text(with_settings(params.read_text(), {"runtime.threads": Setting(3)}))
    git("commit", "-qam", "three threads")
    chat = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}\n'
    folder, few, many = notes(tmp_path / "notes"), tmp_path / "few.jsonl", tmp_path / "many.jsonl"
    few.write_text(chat * 3)
    many.write_text(chat * 20)
    assert "has 3 chats: at least 10 are needed" in ran(folder, "--chat", few).stderr
    assert "does not exist" in ran(folder, "--chat", tmp_path / "none").stderr
    assert ran(folder, "--chat", many).exit_code == 0
    raw = parse_yaml(params.read_text(), name="params.yaml")
    assert raw["runtime"]["threads"] == 3
    assert list(chats_of(raw)) == ["many"]


@pytest.mark.slow
def test_real_steps_correct_what_a_matrix_product_promised(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose real steps are ten times slower gets a run of about a tenth of the FLOPs."""
    surveys = [replace(survey_folder(str(notes(tmp_path / "notes"))), text_bytes=500_000_000, words=100_000)]
    how: dict[str, Any] = {"base": None, "sample": SAMPLE, "runtime": RUNTIME, "hours": 1.0}
    promised, _, _ = init_module._planned(surveys, [], speed=False, **how)
    pace = Pace(10 * promised.run.seconds(LAPTOP), busy=0.75)
    monkeypatch.setattr("niels_gpt.cli.sizing.seconds_to_train", lambda *_: {"train": pace})
    monkeypatch.setattr("niels_gpt.cli.sizing.seconds_to_start", lambda: 2 * LAPTOP.start)
    real, _, ahead = init_module._planned(surveys, [], speed=True, **how)
    assert real.run.tokens * real.run.flops == pytest.approx(promised.run.tokens * promised.run.flops / 10, rel=0.1)
    assert real.seconds["text"] > 1.1 * promised.seconds["text"]  # stages take longer to start here
    told = {"commit": "", "removed": (), "chats": True}
    (takes, busy) = (line for line in init_module._summary(real, ahead, **told) if line.startswith(("takes", "busy")))
    total = sum(real.seconds.values())
    assert takes.startswith(f"takes    about {format_duration(total)} of the 1 h here: ")
    assert busy == (
        "busy     other programs take 75% of the cores: while they do, it takes about " + format_duration(4 * total)
    )


@pytest.mark.parametrize(
    ("text", "hours"),
    [("0.5", 0.5), ("15m", 0.25), ("1h30m", 1.5), ("90 min", 1.5), ("2h", 2), (".25h", 0.25), ("3m", 0.05)],
)
def test_hours_are_written_as_a_number_or_as_a_time(text: str, hours: float) -> None:
    assert init_module.parse_hours(text) == pytest.approx(hours)


@pytest.mark.slow
def test_an_invalid_time_is_refused_with_examples(project: Path, tmp_path: Path) -> None:
    for text in ("soon", "2m", "1001", "-1", "", "15x", "1.2.3", "m", "nan"):
        result = ran(notes(tmp_path / "notes"), f"--hours={text}")
        assert result.exit_code == 2
        assert "is no time from 3m to 1000h" in " ".join(result.output.replace("│", " ").split())


@pytest.mark.slow
def test_an_installed_base_is_taken_unless_time_or_memory_forbid(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("niels_gpt.base.importing.bundled_file", lambda: tmp_path / "a.gguf")
    monkeypatch.setattr("niels_gpt.base.importing.read_config", lambda *_, **__: SMOLLM2)
    folder, params = notes(tmp_path / "notes"), project / "params.yaml"

    def started_from(*arguments: str) -> tuple[Any, str]:
        result = ran(folder, *arguments)
        assert result.exit_code == 0, result.output
        (said,) = [line for line in result.output.splitlines() if line.startswith("base ")] or [""]
        return parse_yaml(params.read_text(), name="it")["base"]["from"], said

    base = "base     smollm2, which is installed; `--from scratch` trains from scratch instead"
    assert started_from("--hours", "4") == ("smollm2", base)
    kinds = {source["load"]["kind"] for source in parse_yaml(params.read_text(), name="it")["sources"].values()}
    assert kinds == {"text", "wikitext", "dolly", "oasst1"}  # without the dialogues, which are about niels_gpt
    assert started_from("--hours", "4", "--from", "scratch") == (None, "")
    assert started_from("--hours", "4", "--from", "smollm2") == ("smollm2", "")
    name, said = started_from("--hours", "12m")
    assert name is None
    assert said.startswith("base     not used, although smollm2 is installed: 12 min 00 s are too short, the least run")
    monkeypatch.setattr("niels_gpt.cli.plan_base.device_memory", lambda _: 4 * 10**9)
    name, said = started_from("--hours", "4")
    assert (name, said) == (
        None,
        "base     not used, although smollm2 is installed: it needs about 5 GB of memory, and there are 4.0",
    )


@pytest.mark.slow
def test_init_and_doctor_give_one_verdict_and_one_number_of_epochs(project: Path, tmp_path: Path) -> None:
    """This includes tables, whose text is smaller than their files."""
    table = "".join(f'{{"id": {i}, "text": "{ENGLISH}{i}", "other": "{"x" * 200}"}}\n' for i in range(900))
    folders = [notes(tmp_path / "notes"), write(tmp_path / "table", {"a.jsonl": table})]
    for arguments in ((), ("--hours", "10")):
        printed = ran(*folders, *arguments).output
        (epochs,) = re.findall(r"; epochs: (.*)", printed)
        (verdict,) = re.findall(r"^verdict  (.*)$", printed, flags=re.MULTILINE)
        (reason,) = re.findall(r" tokens, about ([\d.]+) epochs", (project / "params.yaml").read_text())
        said = CliRunner().invoke(app, ["doctor", "--no-speed"]).output
        assert f"epochs: {epochs}\n" in said
        assert f"verdict: {verdict}\n" in said
        assert reason in set(re.findall(r"([\d.]+) of [\d,]+ tokens", epochs))


SMOLLM2 = ModelConfig(
    V=49152, T=8192, C=576, L=30, H=9, kv_heads=3, d_ff=1536, dropout=0.0, norm="rms", bias=False, activation="swiglu"
)


def tuned(*surveys: Survey, machine: Machine, hours: float = 1.0, chats: tuple[OwnChats, ...] = ()) -> Plan:
    base = ChosenBase("smollm2", "data/no-input.md", None, SMOLLM2)
    return planned(*surveys, base=base, chats=chats, machine=machine, hours=hours)


@pytest.mark.slow
def test_the_tuning_of_a_base_obeys_every_rule_and_ends_in_time() -> None:
    for size, hours, machine in product((2e4, 5e6, 6e8), (0.1, 0.5, 24.0), (Machine(5e10), GPU)):
        chats = (OwnChats("/home/me/chats.jsonl", "chat", 500),) if hours == 0.5 else ()
        how: dict[str, Any] = {"machine": machine, "hours": hours, "chats": chats}
        survey = a_survey(int(size), max(1, int(size) // 2000))
        if hours == 0.1 and (machine is not GPU or size == 6e8):
            with pytest.raises(ValueError, match="6 min 00 s are too short, the least run on this text"):
                tuned(survey, **how)
            continue
        plan = tuned(survey, **how)
        params, raw = parse_params(plan_text(plan, SAMPLE))
        assert params.base.name == "smollm2"
        assert (raw["model"]["T"], raw["train"]["windows"]) == (plan.run.cfg.T, "epochs")
        assert plan.run.epochs <= 3.05
        assert (1024 if machine.cuda else 512) >= plan.run.cfg.T
        assert sum(plan.seconds.values()) <= hours * 3600
        assert raw["p_train"]["wiki"] <= 0.1 < raw["p_train"]["notes"]
        assert "wiki" not in raw["p_val"]


@pytest.mark.slow
def test_a_base_reads_small_text_three_times_and_large_text_twice() -> None:
    small, large = (tuned(a_survey(size, 300), machine=GPU) for size in (500_000, 5_000_000))
    assert small.run.epochs == pytest.approx(3, rel=0.05)
    assert large.run.epochs == pytest.approx(2, rel=0.02)
    slow = tuned(a_survey(5_000_000, 300), machine=Machine(5e10), hours=0.5)
    assert slow.run.limited_by == "time"
    assert slow.settings["train.base_lr"].value == 3e-4
    assert not slow.settings["sft.run"].value, "the base's own answers are better than a few steps"
    assert large.settings["sft.run"].value


@pytest.mark.slow
def test_a_short_tuning_on_a_gpu_is_not_compiled_unless_a_person_has_said_so(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init_module, "measure", lambda *_, **__: GPU)
    base = ChosenBase("smollm2", "data/no-input.md", None, SMOLLM2)
    how: dict[str, Any] = {"base": base, "sample": SAMPLE, "hours": 1.0, "speed": False}
    for written, compiled in (("auto", False), (True, True)):
        runtime = {**RUNTIME, "compile": written}
        _, text, _ = init_module._planned([a_survey(500_000, 300)], [], runtime=runtime, **how)
        assert parse_yaml(text, name="planned")["runtime"]["compile"] is compiled
