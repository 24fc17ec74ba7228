"""Anybody's own text, and which field of a row is text."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_gpt.data.fields import small_fields
from niels_gpt.data.fineweb_edu import iter_fineweb_edu, select_text_field
from niels_gpt.data.gutenberg import iter_gutenberg
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
    assert samples[-1].text == "caf\ufffd"
    assert len(samples) == 604
    assert samples[0].meta == {"path": "a.txt", "utf8": True}
    assert samples[2].meta["path"] == "c.jsonl:3"
    assert samples[-1].meta == {"path": "sub/b.md", "utf8": False}
    assert [s.text for s in iter_text(str(tmp_path / "a.txt"))] == ["plain"]


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("x.jsonl", b'{"text": "a"}\n{broken\n', "line 2, is not JSON"),
        ("x.jsonl", b"[1]\n", "holds no JSON object"),
        ("x.jsonl", b'{"n": 1}\n', r"its keys are \['n'\]"),
        ("x.parquet", b"PAR1 not really", "no parquet file"),
        ("x.exe", b"MZ", "is no text file"),
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
