"""Anybody's own text, and which field of a row is text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from niels_gpt.data.fields import small_fields
from niels_gpt.data.fineweb_edu import iter_fineweb_edu, select_text_field
from niels_gpt.data.gutenberg import iter_gutenberg
from niels_gpt.data.own_chats import iter_own_chats
from niels_gpt.data.text import iter_text


def test_select_text_field() -> None:
    assert select_text_field({"id": "x", "text": "t"}) == "t"
    assert select_text_field({"n": 1, "content": "c", "other": "o"}) == "c"
    assert select_text_field({"text": None, "content": "c"}) == "c"
    with pytest.raises(ValueError, match=r"\['n', 'tags'\]"):
        select_text_field({"n": 1, "tags": ["a"]})
    row = {"text": "t", "id": "x", "score": 1.5, "big": "y" * 900, "list": []}
    assert small_fields(row, text=row["text"]) == {"id": "x", "score": 1.5}


def make_folder(root: Path) -> None:
    (root / "sub").mkdir()
    (root / "a.txt").write_text("plain")
    (root / "sub/b.md").write_bytes("caf\xe9".encode("latin-1"))
    (root / "c.jsonl").write_text(
        json.dumps({"id": 1, "body": "row one"}) + "\n\n" + json.dumps({"text": "row two"}) + "\n"
    )
    pq.write_table(pa.table({"text": [f"p{i}" for i in range(600)], "n": list(range(600))}), root / "d.parquet")
    (root / "e.bin").write_bytes(b"\0\1")
    (root / ".hidden.txt").write_text("no")


def test_a_folder_of_all_kinds(tmp_path: Path) -> None:
    make_folder(tmp_path)
    samples = list(iter_text(str(tmp_path)))
    assert [s.text for s in samples[:3]] == ["plain", "row one", "row two"]
    assert samples[3].text == "p0"
    assert samples[-1].text == "café"
    assert len(samples) == 604
    assert samples[0].meta == {"path": "a.txt", "utf8": True, "encoding": "utf-8"}
    assert samples[2].meta["path"] == "c.jsonl:3"
    assert samples[-1].meta == {"path": "sub/b.md", "utf8": False, "encoding": "cp1252"}
    assert [s.text for s in iter_text(str(tmp_path / "a.txt"))] == ["plain"]


def test_packed_files_tables_globs_and_front_matter(tmp_path: Path) -> None:
    (tmp_path / "2024").mkdir()
    (tmp_path / "2024/a.md.gz").write_bytes(gzip.compress(b"---\ntitle: x\n---\nbody\n"))
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.compress(b'{"text": "row"}\n'))
    (tmp_path / "c.csv").write_bytes(b'id,text\n1,"two\nlines"\n2,plain\n')
    everything = ["---\ntitle: x\n---\nbody\n", "row", "two\nlines", "plain"]
    assert [s.text for s in iter_text(str(tmp_path))] == everything
    assert [s.text for s in iter_text(str(tmp_path), glob="2024/*", front_matter=False)] == ["body\n"]
    with pytest.raises(ValueError, match="mend the glob"):
        list(iter_text(str(tmp_path), glob="2025/*"))


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("utf-16", "Ein Text, der mit einer Marke beginnt."), ("cp1251", "Съешь ещё этих мягких французских булок. " * 9)],
)
def test_an_encoding_is_detected_and_named(tmp_path: Path, encoding: str, text: str) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    (sample,) = iter_text(str(tmp_path))
    assert sample.text.removeprefix("\ufeff") == text
    assert not sample.meta["utf8"]


def test_chats_of_ones_own(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    (tmp_path / "mine.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    (chat,) = iter_own_chats(str(tmp_path))
    assert [vars(message) for message in chat.messages] == messages
    for row, sentence in (
        ({"text": "x"}, "messages"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "a role of system, user, assistant"),
        ({"messages": messages[:1]}, "says nothing"),
    ):
        (tmp_path / "mine.jsonl").write_text("\n" + json.dumps(row))
        with pytest.raises(ValueError, match=f"line 2.*{sentence}"):
            list(iter_own_chats(str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("x.jsonl", b'{"text": "a"}\n{broken\n', "line 2, is not JSON"),
        ("x.jsonl", b"[1]\n", "holds no JSON object"),
        ("x.jsonl", b'{"n": 1}\n', r"its keys are \['n'\]"),
        ("x.parquet", b"PAR1 not really", "no parquet file"),
        ("x.exe", b"MZ", "is no text file"),
        ("x.txt.gz", b"not packed", "cannot be read or unpacked"),
        ("x.md.zst", b"not packed", "cannot be read or unpacked"),
        ("x.csv", b"a,b\n1,2\n", "none of them called text"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, data: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=sentence):
        list(iter_text(str(tmp_path / name)))


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        list(iter_text(str(tmp_path / "nowhere")))


def test_streams_read_a_local_folder_or_file_by_the_same_call(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    pq.write_table(
        pa.table({"text": [f"page {i}" for i in range(50)], "id": [str(i) for i in range(50)]}), folder / "0.parquet"
    )
    pages = list(iter_fineweb_edu(path=str(folder), shuffle_buffer_size=10))
    assert sorted(p.meta["id"] for p in pages) == sorted(str(i) for i in range(50))
    assert [p.text for p in pages] == [p.text for p in iter_fineweb_edu(path=str(folder), shuffle_buffer_size=10)]
    assert len(list(iter_fineweb_edu(path=str(folder), take=7))) == 7
    (tmp_path / "books.jsonl").write_text(
        "".join(json.dumps({"title": i, "content": f"book {i}"}) + "\n" for i in range(5))
    )
    books = list(iter_gutenberg(dataset_id=str(tmp_path / "books.jsonl"), shuffle=False))
    assert [b.text for b in books] == [f"book {i}" for i in range(5)]
    assert books[0].source == "gutenberg"
