"""Tests of the stages `load` and `split`, run in this process, and of the digests of a stage's inputs."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_gpt.data.corpus.parts import (
    CHAT_SCHEMA,
    DOCUMENT_SCHEMA,
    open_texts,
    read_column,
    read_contents,
    write_rows,
)
from niels_gpt.data.types import Chat, Document
from niels_gpt.pipeline.stage import digest
from stages import load, split, tokenize
from tests.in_process import Checkout, texts
from tests.watchdog import watchdog


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    monkeypatch.chdir(tmp_path)
    return Checkout(tmp_path)


def test_what_cannot_be_watched_is_refused(checkout: Checkout, tmp_path: Path) -> None:
    (checkout.notes / "a.md").write_text("a note")
    os.mkfifo(checkout.notes / "b")
    (checkout.notes / "c").symlink_to(tmp_path)
    with watchdog(), pytest.raises(ValueError, match=r"^data/roam/b is a FIFO, no file: remove it \(and 1 more"):
        checkout.run(load, "load")
    (checkout.notes / "b").unlink()
    with pytest.raises(ValueError, match=r"^data/roam/c is a linked folder.*make a source of [^(]*$"):
        checkout.run(load, "load")
    assert not list(tmp_path.glob("cache/raw/*"))


def test_a_file_that_is_not_utf_8_is_reported_once(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout.notes / "a.md").write_text("plain")
    (checkout.notes / "b.md").write_bytes("Smørrebrød".encode("latin-1"))
    (checkout.notes / "c.md").write_bytes("wide".encode("utf-16"))
    raw = checkout.run(load, "load")
    assert texts(raw) == ["plain", "Smørrebrød", "wide"]
    out = capsys.readouterr().out
    assert "  b.md is not UTF-8: read as cp1252\n" in out
    assert "  c.md is not UTF-8: read as utf-16-le\n" in out
    assert "a.md" not in out
    (checkout.notes / "d.jsonl").write_bytes('{"text": "Smørrebrød"}\n'.encode("latin-1") * 9)
    (checkout.notes / "e.txt").write_bytes(b"\xff\xfe\x00\xd8")
    checkout.notes.rename("mine")
    (Path("cache/raw/roam")).rename("old")
    checkout.run(load, "load", input="mine", load={"kind": "text"})
    out = capsys.readouterr().out
    assert out.count("d.jsonl is not UTF-8") == 1
    assert "e.txt is not UTF-8: read as damaged UTF-16-LE: what could not be read is shown as U+FFFD" in out


def test_the_tail_of_every_document_is_held_out_and_the_head_is_trained_on(checkout: Checkout) -> None:
    for i in range(3):
        (checkout.notes / f"{i}.txt").write_text(f"{i}" * 80 + "x" * 20)
    changes = {"load": {"kind": "text", "held_out_tail": 0.2}, "split": {"by": "given"}}
    raw = checkout.run(load, "load", **changes)
    rows = checkout.run(split, "split", **changes)

    def chosen(name: str) -> list[str]:
        file, numbers = raw / "part-00000.parquet", np.load(rows / f"{name}.npy")
        return [text for group in read_contents(file, numbers) for text in group]

    assert chosen("train") == [f"{i}" * 80 for i in range(3)]
    assert chosen("val") == ["x" * 20] * 3


def test_blank_documents_are_left_out(checkout: Checkout) -> None:
    for name, text in (("a", "one"), ("b", " \n"), ("c", "")):
        (checkout.notes / f"{name}.md").write_text(text)
    raw = checkout.run(load, "load")
    assert open_texts(raw).column("id") == ["a.md"]


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [True, False])
def test_the_cache_says_whether_its_source_was_streamed(checkout: Checkout, streamed: bool) -> None:
    changes: dict[str, object] = {"split": {"by": "document", "val_frac": 0.5, "seed": 1}}
    if streamed:
        pq.write_table(pa.table({"text": [f"page {i}" for i in range(9)]}), checkout.notes / "0.parquet")
        hub = {"dataset": None, "revision": None, "split": "train", "shuffle_buffer": None, "seed": 1, "config": "x"}
        changes["load"] = {**hub, "kind": "fineweb_edu", "max_documents": None, "bytes_per_token": 5.0}
    else:
        for i in range(9):
            (checkout.notes / f"{i}.md").write_text(f"page {i}")
    write_tokenizer(Path("cache/tokenizer"))
    raw = checkout.run(load, "load", **changes)
    assert texts(raw) == [f"page {i}" for i in range(9)]
    checkout.run(split, "split", **changes)
    cache = checkout.run(tokenize, "tokenize", **changes)
    assert json.loads((cache / "meta.json").read_text())["streaming"] is streamed


@pytest.mark.slow
def test_a_stream_ends_at_the_budgets_of_both_splits(checkout: Checkout) -> None:
    pq.write_table(pa.table({"text": [f"page {i:03}" for i in range(99)]}), checkout.notes / "0.parquet")
    hub = {"dataset": None, "revision": None, "split": "train", "shuffle_buffer": None, "seed": 1, "config": "x"}
    load_pages = {**hub, "kind": "fineweb_edu", "max_documents": None, "bytes_per_token": 4.0}
    budgets = {"max_train_tokens": 60, "max_val_tokens": 40}
    assert len(texts(checkout.run(load, "load", load=load_pages, budget=budgets))) == 50  # 400 bytes, 8 per text
    Path("cache/raw/roam").rename("old")
    assert len(texts(checkout.run(load, "load", load=load_pages, budget=budgets | {"max_val_tokens": None}))) == 99


def write_tokenizer(folder: Path) -> None:
    from niels_gpt.files.atomic import write_json
    from niels_gpt.tokenizer.tokenizers import ByteTokenizer, describe

    write_json(folder / "tokenizer.json", describe(ByteTokenizer()))


# Parquet files


@pytest.mark.slow
def test_rows_come_back_as_they_were_chosen_across_groups(tmp_path: Path) -> None:
    file = tmp_path / "part.parquet"
    documents = [Document(id=f"{i}", text="x" * 99_999 + f"{i}") for i in range(100)]  # three row groups
    assert write_rows(file, DOCUMENT_SCHEMA, documents)[0] == 100
    assert pq.ParquetFile(file).num_row_groups > 2
    rows = np.array([0, 41, 42, 43, 83, 84, 99])
    assert [text[99_999:] for group in read_contents(file, rows) for text in group] == [str(row) for row in rows]
    assert read_column(file, "split") == [None] * 100


def test_chats_keep_their_group(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "é"}, {"role": "assistant", "content": "ab"}]
    file = tmp_path / "part.parquet"
    assert write_rows(file, CHAT_SCHEMA, [Chat(id="1", messages=messages, group="tree")]) == (1, 4)
    assert read_column(file, "group") == ["tree"]
    assert list(read_contents(file, np.array([0]))) == [[messages]]


# Digests of inputs, which a stage compares before and after it runs


def test_links_to_the_folder_itself_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("a")
    before = digest(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).symlink_to(".")
    with watchdog():
        assert digest(tmp_path) == before


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.md")
    with watchdog():
        assert digest(tmp_path / "x.md") == "absent"
        assert digest(tmp_path) != digest(tmp_path / "x.md")
    assert digest(tmp_path / "none") == "absent"


def test_large_files_of_one_size_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "large.bin"
    file.write_bytes(bytes(5 << 20))
    os.utime(file, ns=(1, 1))
    before = digest(file), digest(tmp_path)
    file.write_bytes(bytes((5 << 20) - 1) + b"x")
    os.utime(file, ns=(2, 2))
    assert digest(file) != before[0]
    assert digest(tmp_path) != before[1]
    small = tmp_path / "small.bin"
    small.write_bytes(b"a")
    os.utime(small, ns=(1, 1))
    before = digest(small), digest(tmp_path)
    small.write_bytes(b"b")
    os.utime(small, ns=(1, 1))
    assert digest(small) != before[0]
    assert digest(tmp_path) != before[1]


def test_a_name_and_its_place_are_part_of_a_folders_digest(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("x")
    before = digest(tmp_path)
    (tmp_path / "a.md").rename(tmp_path / "b.md")
    assert digest(tmp_path) != before
    (tmp_path / "b.md").rename(tmp_path / "a.md")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/x.pyc").write_text("noise")
    assert digest(tmp_path) == before
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.md").rename(tmp_path / "sub/a.md")
    assert digest(tmp_path) != before
