"""Tests of bad input: a one-line error, a non-zero exit code, no partial output.

Stages run here directly, in the way DVC runs them.
"""

import json
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tests.conftest import Repo

pytestmark = pytest.mark.dag


def refused(done: subprocess.CompletedProcess[str], *sentences: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("ERROR: ")
    for sentence in sentences:
        assert sentence in lines[0]


def leftovers(repo: Repo) -> list[Path]:
    hidden = (path for top in ("cache", "models", "metrics") for path in (repo.path / top).rglob(".*"))
    return [path for path in hidden if path.name != ".keep"]


def test_a_missing_source(fresh_repo: Repo) -> None:
    shutil.rmtree(fresh_repo.path / "data/roam")
    refused(fresh_repo.stage("load", "roam"), "load@roam", "data/roam does not exist")
    assert not (fresh_repo.path / "cache/raw/roam").exists()
    assert leftovers(fresh_repo) == []
    (fresh_repo.path / "data/primer.txt").unlink()
    refused(fresh_repo.stage("load", "primer"), "load@primer", "data/primer.txt")
    done = fresh_repo.run("dvc", "repro", check=False)
    assert done.returncode != 0
    assert "data/roam" in done.stderr


def test_an_empty_source(fresh_repo: Repo) -> None:
    for note in (fresh_repo.path / "data/roam").iterdir():
        note.write_text(" \n")
    refused(fresh_repo.stage("load", "roam"), "data/roam holds no text")
    (fresh_repo.path / "data/primer.txt").write_text("")
    refused(fresh_repo.stage("load", "primer"), "data/primer.txt holds no text")
    assert leftovers(fresh_repo) == []


def test_hostile_notes_survive_to_tokens_and_bad_files_are_named(built_repo: Repo) -> None:
    roam = built_repo.path / "data/roam"
    (roam / "crlf.md").write_bytes(b"one\r\ntwo\r\n" * 9)
    (roam / "bom.md").write_bytes(b"\xef\xbb\xbfwith a mark")
    (roam / "nul.md").write_bytes(b"a\x00b")
    (roam / "empty.md").write_bytes(b"")
    (roam / "latin1.md").write_bytes("Smørrebrød".encode("latin-1"))
    (roam / "long.md").write_bytes(b"word " * 64_000)
    done = built_repo.run("dvc", "repro", "tokenize@roam")
    assert "latin1.md is not UTF-8" in done.stdout
    assert "11 documents" in done.stdout

    (roam / "gone.md").symlink_to("nowhere.md")
    refused(built_repo.stage("load", "roam"), "gone.md is a link to nothing")
    (roam / "gone.md").unlink()
    assert (built_repo.path / "cache/raw/roam/part-00000.parquet").is_file()  # the last good output is kept
    assert leftovers(built_repo) == []


def test_one_document_cannot_be_held_out(built_repo: Repo) -> None:
    (built_repo.path / "data/primer.txt").write_text("user: hi\r\nassistant: ho\r\n")
    built_repo.run("dvc", "repro", "duplicates")
    shutil.rmtree(built_repo.path / "cache/split/text/primer")
    refused(built_repo.stage("split", "primer"), "1 document to train on and 0 to hold out", "data/primer.txt")
    assert not (built_repo.path / "cache/split/text/primer").exists()


def test_an_unknown_source_and_a_budget_below_a_document_are_refused(built_repo: Repo) -> None:
    refused(
        built_repo.stage("load", "news"),
        "there is no source 'news'",
        "['dialogues', 'dolly15k', 'oasst1', 'primer', 'roam', 'wiki']",
    )
    built_repo.set(sources__wiki__budget__max_train_tokens=40)  # more than a window, less than a document
    before = (built_repo.path / "cache/manifests/wiki.json").read_bytes()
    refused(
        built_repo.stage("tokenize", "wiki"),
        "no document for train within its budget: raise budget.max_train_tokens",
    )
    assert (built_repo.path / "cache/manifests/wiki.json").read_bytes() == before
    assert leftovers(built_repo) == []


def test_sources_shorter_than_a_window_are_all_listed(built_repo: Repo) -> None:
    built_repo.set(model__T=1_000_000)
    refused(built_repo.stage("train"), "too short for a window of T+1 = 1000001 tokens", "primer train has", "wiki val")


def test_weights_and_shapes_that_make_no_sense(built_repo: Repo) -> None:
    before = (built_repo.path / "models/pretrain/history.json").read_bytes()
    for values, sentence in (  # tests/test_params.py tests other invalid values, which the same reader refuses
        ({"p_train.roam": -1, "model.H": 3}, "not a multiple of H=3"),
        ({"runtime.device": "tpu"}, "'tpu' is no device: use auto, cpu, mps, cuda"),
    ):
        text = (built_repo.path / "params.yaml").read_text()
        built_repo.set_all(values)
        refused(built_repo.stage("train"), sentence)
        (built_repo.path / "params.yaml").write_text(text)
    assert (built_repo.path / "models/pretrain/history.json").read_bytes() == before


def test_a_token_file_that_changed_is_named(built_repo: Repo) -> None:
    tokens = built_repo.path / "cache/tokens/text/roam/train/part-00000.bin"
    data = tokens.read_bytes()
    tokens.chmod(0o644)
    tokens.write_bytes(data[:-2] + b"\0\0")
    (built_repo.path / "cache/tokens/text/wiki/val/part-00000.bin").unlink()
    refused(
        built_repo.stage("train"),
        "cache/tokens/text/roam/train/part-00000.bin (changed)",
        "cache/tokens/text/wiki/val/part-00000.bin (missing)",
        "delete cache/tokens/text/roam, cache/tokens/text/wiki and run `dvc repro`",
    )


def test_a_truncated_or_foreign_model_is_refused(built_repo: Repo) -> None:
    best = built_repo.path / "models/pretrain/best.pt"
    data = best.read_bytes()
    best.unlink()
    best.write_bytes(data[:1000])
    refused(built_repo.stage("eval"), "best.pt is not a checkpoint of this project")
    best.unlink()
    torch.save({"weights": torch.zeros(2)}, best)
    refused(built_repo.stage("eval"), "it lacks ['config', 'model', 'optimizer', 'step']")


@pytest.mark.parametrize(
    ("command", "out", "named"),
    [
        ("load@wiki", "cache/raw/wiki", "cache/raw/wiki/part-00000.parquet: "),
        ("train", "models/pretrain", "state.pt could not be written (is the disk full?)"),
    ],
)
def test_a_full_disk_leaves_no_partial_output(built_repo: Repo, command: str, out: str, named: str) -> None:
    shutil.rmtree(built_repo.path / out)
    shutil.rmtree(built_repo.path / "checkpoints", ignore_errors=True)
    done = subprocess.run(
        ["python", "-m", f"stages.{command.partition('@')[0]}"],
        cwd=built_repo.path,
        env=built_repo.environment() | {"DVC_STAGE": command},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    refused(done, named)
    assert not (built_repo.path / out).exists()
    assert leftovers(built_repo) == []


def test_a_folder_of_anybodys_text_is_a_source(fresh_repo: Repo) -> None:
    mine = fresh_repo.path / "mine"
    mine.mkdir()
    (mine / "a.txt").write_text("a letter\n" * 20)
    (mine / "rows.jsonl").write_text('{"text": "row one"}\n{"text": "row two", "title": "two"}\n')
    (mine / "latin.txt").write_bytes("Smørrebrød".encode("latin-1"))
    fresh_repo.set(sources__roam__input="mine", sources__roam__load={"kind": "text"})
    done = fresh_repo.stage("load", "roam")
    assert done.returncode == 0, done.stderr
    assert "latin.txt is not UTF-8" in done.stdout
    assert "4 documents" in done.stdout
    (mine / "rows.jsonl").write_text('{"text": "row one"}\n{"body": "row two"}\n')
    refused(fresh_repo.stage("load", "roam"), "rows.jsonl, row 2: it has no field 'text'")
    (mine / "rows.jsonl").write_text('{"text": "row one"}\n{broken\n')
    refused(fresh_repo.stage("load", "roam"), "rows.jsonl, line 2, is not JSON")


def test_every_cache_records_its_origin_as_the_original_specification_lists(built_repo: Repo) -> None:
    common = ["dataset_name", "dataset_config", "split_rule", "seed", "token_dtype", "tokenizer_sha256", "vocab_size"]
    common += ["special_token_ids"]
    for place, own in (
        ("tokens/text/wiki", ["train_tokens", "val_tokens"]),
        ("tokens/chat/dolly15k", ["train_examples", "val_examples"]),
        ("tokens/chat/oasst1", ["train_examples", "val_examples"]),
    ):
        text = (built_repo.path / "cache" / place / "meta.json").read_text()
        assert {*common, *own} <= set(json.loads(text)), place
        assert str(built_repo.path) not in text
    tokenizer = json.loads((built_repo.path / "cache/tokenizer/meta.json").read_text())
    assert tokenizer["vocab_size"] == 260
