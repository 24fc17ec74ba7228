"""Tests of the text loaders: files of every kind, in every encoding, and damaged ones."""

import csv
import gzip
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.data.chat import iter_own_chats
from niels_gpt.data.dolly import iter_dolly_sft
from niels_gpt.data.fineweb_edu import iter_fineweb_edu
from niels_gpt.data.gutenberg import iter_gutenberg
from niels_gpt.data.hub import HubError
from niels_gpt.data.kinds import source_kinds
from niels_gpt.data.oasst1 import iter_oasst1_sft
from niels_gpt.data.readers import files
from niels_gpt.data.readers.files import decode_text, iter_dialogues
from niels_gpt.data.roam import iter_roam
from niels_gpt.data.text import iter_text
from niels_gpt.data.types import Request
from niels_gpt.data.wikitext import iter_wikitext


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
    assert samples[0].meta == {"path": "a.txt", "file": "a.txt", "encoding": "utf-8"}
    assert samples[2].meta == {"path": "c.jsonl:3", "file": "c.jsonl", "encoding": "utf-8"}
    assert samples[-1].meta == {"path": "sub/b.md", "file": "sub/b.md", "encoding": "cp1252"}
    assert [s.text for s in iter_text(str(tmp_path / "a.txt"))] == ["plain"]


def test_packed_files_tables_globs_and_front_matter(tmp_path: Path) -> None:
    (tmp_path / "2024").mkdir()
    (tmp_path / "2024/a.md.gz").write_bytes(gzip.compress(b"---\ntitle: x\n---\nbody\n"))
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.compress(b'{"text": "row"}\n'))
    (tmp_path / "c.csv").write_bytes(b'id,text\n1,"two\nlines"\n2,plain\n')
    everything = ["---\ntitle: x\n---\nbody\n", "row", "two\nlines", "plain"]
    assert [s.text for s in iter_text(str(tmp_path))] == everything
    assert [s.text for s in iter_text(str(tmp_path), glob="2024/*", front_matter=False)] == ["body\n"]
    with pytest.raises(ValueError, match="fix the glob"):
        list(iter_text(str(tmp_path), glob="2025/*"))


LATIN = "Ein Text mit Umlauten: äöü, und lang genug für eine Vermutung über seine Sprache. " * 3
CYRILLIC = "Съешь ещё этих мягких французских булок. " * 9


@pytest.mark.parametrize("kind", ["roam", "text", "primer", "jsonl", "csv", "chat", "md.gz"])
@pytest.mark.parametrize(
    ("encoding", "text", "said"),
    [
        ("utf-8", LATIN, "utf-8"),
        ("utf-8-sig", LATIN, "utf-8"),
        ("latin-1", LATIN, None),
        ("cp1251", CYRILLIC, None),
        ("utf-16", LATIN, "utf-16-le"),
        ("utf-16-le", LATIN, "utf-16-le"),
        ("utf-16-be", LATIN, "utf-16-be"),
        ("utf-32", CYRILLIC, "utf-32-le"),
    ],
)
def test_every_kind_reads_every_encoding(tmp_path: Path, kind: str, encoding: str, text: str, said: str | None) -> None:
    """The text has no byte order mark, and its metadata names the encoding."""
    path = str(tmp_path)
    if kind in ("roam", "text", "primer", "md.gz"):
        text = text.strip()
        data = text.encode(encoding)
        (tmp_path / {"md.gz": "a.md.gz"}.get(kind, "a.md")).write_bytes(
            gzip.compress(data) if kind == "md.gz" else data
        )
        read = {"roam": iter_roam, "primer": lambda path: iter_dialogues(f"{path}/a.md", delimiter="\n\n")}.get(
            kind, iter_text
        )
        (sample,) = read(path)
    elif kind == "csv":
        (tmp_path / "a.csv").write_bytes(f'text,n\r\n"{text}",1\r\n'.encode(encoding))
        (sample,) = iter_text(path)
    else:
        messages = [{"role": "assistant", "content": text}]
        row = {"messages": messages} if kind == "chat" else {"text": text}
        (tmp_path / "a.jsonl").write_bytes((json.dumps(row, ensure_ascii=False) + "\n").encode(encoding))
        if kind == "chat":
            (chat,) = iter_own_chats(path)
            assert chat.messages[0]["content"] == text
            return
        (sample,) = iter_text(path)
    assert sample.text == text
    assert sample.meta["encoding"] == said or (said is None and sample.meta["encoding"] != "utf-8")


def test_front_matter_behind_a_mark_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"\xef\xbb\xbf---\ntitle: x\n---\nbody\n")
    (sample,) = iter_text(str(tmp_path), front_matter=False)
    assert sample.text == "body\n"


def test_a_note_of_front_matter_alone_is_no_text(tmp_path: Path) -> None:
    for end in ("", "\n", "\r\n"):
        (tmp_path / "a.md").write_bytes(f"---\ntitle: x\n---{end}".encode())
        assert [sample.text for sample in iter_text(str(tmp_path), front_matter=False)] in ([], [""])


def test_zeros_in_a_text_make_it_no_utf_16(tmp_path: Path) -> None:
    for data in (b"a\x00b", b"a\x00bc", b"\x00" * 8, b"zero \x00 in between"):
        (tmp_path / "a.txt").write_bytes(data)
        (sample,) = iter_text(str(tmp_path))
        assert sample.text == data.decode()


def test_damaged_text_is_kept_and_reported(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(LATIN.encode("utf-16") + b"\x00")
    (sample,) = iter_text(str(tmp_path))
    assert sample.text.startswith(LATIN)
    assert sample.text.endswith("\ufffd")
    assert sample.meta["encoding"] == "damaged UTF-16-LE"


def test_chats_of_ones_own(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    (tmp_path / "mine.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    (chat,) = iter_own_chats(str(tmp_path))
    assert chat.messages == messages
    for row, sentence in (
        ({"text": "x"}, "messages"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "a role of system, user, assistant"),
        ({"messages": messages[:1]}, "says nothing"),
    ):
        (tmp_path / "mine.jsonl").write_text("\n" + json.dumps(row))
        with pytest.raises(ValueError, match=f"line 2.*{sentence}"):
            list(iter_own_chats(str(tmp_path)))


def test_text_in_subfolders_is_found(tmp_path: Path) -> None:
    deep = tmp_path / "2024/may/a folder"
    deep.mkdir(parents=True)
    (deep / "note.md").write_text("deep")
    (tmp_path / "note.md").write_text("shallow")
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    (deep / "chats.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    found = ["2024/may/a folder/note.md", "note.md"]
    assert [note.meta["path"] for note in iter_roam(str(tmp_path))] == found
    assert [sample.meta["path"] for sample in iter_text(str(tmp_path), glob="*.md")] == found
    assert len(list(iter_own_chats(str(tmp_path)))) == 1


GOOD_LINE = b'{"text": "a"}\n'


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("x.jsonl", GOOD_LINE + b"{broken\n", "line 2, is not JSON"),
        ("x.jsonl", GOOD_LINE + b'{"text": "\\ud800"}\n', r"line 2, spells half a character \(\\ud800\)"),
        ("x.jsonl", GOOD_LINE + b'{"n": ["a", {"\\uDFFF": 1}], "text": "b"}\n', r"line 2, spells half .*\\udfff"),
        ("x.jsonl", GOOD_LINE + b'{"text": ' + b"[" * 99_999 + b"]" * 99_999 + b"}\n", "line 2, is not JSON"),
        ("x.jsonl", GOOD_LINE + b'{"n": ' + b"9" * 9_999 + b"}\n", "line 2, is not JSON"),
        ("x.jsonl", b"[1]\n", "line 1, holds no JSON object"),
        ("x.jsonl", b'{"n": 1}\n', r"row 1: .*its keys are \['n'\]"),
        ("x.jsonl.gz", gzip.compress(GOOD_LINE * 999, mtime=0)[:-9], "cannot be read or unpacked"),
        ("x.parquet", b"PAR1 not really", "no parquet file"),
        ("x.parquet", b"", "no parquet file"),
        ("x.exe", b"MZ", "is no text file"),
        ("x.txt.gz", b"not packed", "cannot be read or unpacked"),
        ("x.md.zst", b"not packed", "cannot be read or unpacked"),
        ("x.txt.gz", gzip.compress(b"text", mtime=0) + b"more", "cannot be read or unpacked"),
        ("x.txt.zst", zstandard.compress(bytes(range(256)) * 4000)[:-20], "cannot be read or unpacked .*Truncated"),
        ("x.txt.zst", zstandard.compress(b"text") + b"more", "cannot be read or unpacked"),
        ("x.jsonl", GOOD_LINE + b'{"text": "a", "n": 1, "text": "b"}\n', "line 2, is not JSON .*'text' occurs twice"),
        ("x.jsonl", GOOD_LINE + b'{"text": "a", "m": {"n": 1, "n": 2}}\n', "line 2, is not JSON .*'n' occurs twice"),
        (
            "x.jsonl",
            GOOD_LINE + b'{"title": "b"}\n',
            r"row 2: it has no field 'text', as rows before it; .*\['title'\]",
        ),
        ("x.jsonl", b'{"body": null, "title": "b"}\n', "row 1: its field 'body' is null and may be the text"),
        ("x.jsonl", GOOD_LINE + b'{"text": ["b"], "title": "c"}\n', "row 2: its field 'text' is no text but list"),
        ("x.jsonl", b'[{"text": "a"},\n{"text": "b"}]\n', "line 1, is not JSON"),
        ("x.jsonl", b'{"text": "a"}\r{"text": "b"}\r', "line 1, is not JSON"),
        ("x.csv", b"a,b\n1,2\n", "none of them called text"),
        ("x.csv", b"a;b\n1;2\n", r"columns \['a', 'b'\], none of them called text"),
        ("x.csv", b"text,n,text\na,1,b\n", "more than one of them called text"),
        ("x.csv", b'n,text\n1,"a\nb"\n2,"never\n3,closed\n', r"row 3 \(lines 4 to 5\), .*opened and never closed"),
        ("x.csv", b'n,text\n1,"never\n2,closed\n3,"c"\n', r"row 2 \(lines 2 to 4\), is no CSV \(',' expected"),
        ("x.csv", b'n,text\n1,"a ""b\n', r"row 2 \(lines 2 to 2\), .*opened and never closed"),
        ("x.csv", b'"n,text\n1,a\n', r"row 1 \(lines 1 to 2\), .*opened and never closed"),
        ("x.csv", b"text\na\nb, and more\n", r"row 3 \(line 3\), has 2 cells in 1 columns: put quotes around .*','"),
        ("x.csv", b"sep=;\nn;text\n1;a\n2\n", r"row 4 \(line 4\), has no column 2"),
        ("x.csv", b"sep=;\nn;text\n2\n", r"row 3 \(line 3\), has no column 2"),
        ("x.csv", b"a,text\n1,x\n2\n", r"row 3 \(line 3\), has no column 2"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, data: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=rf"{name}.*{sentence}"):
        list(iter_text(str(tmp_path / name)))


@pytest.mark.parametrize(
    "table",
    [
        "n;text;m\n1;a, b;2\n3;c;4\n",
        "n\ttext\n1\ta, b\n3\tc\n",
        "n|text\n1|a, b\n3|c\n",
        'text\n"a, b"\nc\n',
        "text;n\na, b;1;\nc\n",  # one empty cell too many, then one too few after the text
        'sep=;\nn;text\n1;"a, b"\n2;c',
        '"sep=\t"\nn\ttext\n1\ta, b\n2\tc\n\n',
        '"n, m";"text"\n1;a, b\n2;c\n',
        'Notes\n"a, b"\nc\n',
        "n, m, o;text\n1;a, b\n2;c\n",
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_a_table_of_any_delimiter_and_line_end_is_read(
    tmp_path: Path, table: str, line_end: str, encoding: str
) -> None:
    (tmp_path / "a.csv").write_bytes(table.replace("\n", line_end).encode(encoding))
    assert [sample.text for sample in iter_text(str(tmp_path))] == ["a, b", "c"]


CELLS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('",;\t|\n\r \u2028\x0c\x1e\x85')), min_size=1
)


@pytest.mark.slow
@given(cells=CELLS, delimiter=st.sampled_from(",;\t|"), end=st.sampled_from(["\n", "\r\n", "\r"]), before=st.booleans())
def test_any_text_comes_back_out_of_csv(cells: list[str], delimiter: str, end: str, before: bool) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([["text", "n"] if before else ["n", "text"], *([c, "x"] if before else ["x", c] for c in cells)])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.csv").write_bytes(out.getvalue().encode())
        assert [sample.text for sample in iter_text(folder)] == cells


@pytest.mark.slow
@given(
    cells=CELLS,
    ascii_only=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    packed=st.sampled_from(["", ".gz", ".zst"]),
)
def test_any_text_comes_back_out_of_json_lines_packed_in_several_members(
    cells: list[str], ascii_only: bool, end: str, last: bool, packed: str
) -> None:
    lines = [json.dumps({"n": 1, "text": c, "title": "x"}, ensure_ascii=ascii_only).encode() for c in cells]
    members = [line + end.encode() for line in lines[:-1]] + [lines[-1] + (end.encode() if last else b"")]
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[packed]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"a.jsonl{packed}").write_bytes(b"".join(map(pack, members)))
        assert [sample.text for sample in iter_text(folder)] == cells


def test_a_row_whose_text_is_null_falls_to_no_other_column_and_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": "one", "title": "A"}, {"text": None, "title": "B"}, {"text": "", "title": "C"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.csv").write_text("title,text\nA,one\nB,\nC,\n")
    pq.write_table(pa.table({key: [row[key] for row in rows] for key in ("title", "text")}), tmp_path / "c.parquet")
    (tmp_path / "d.jsonl").write_text('{"body": "one", "title": "A"}\n{"title": "B", "body": null}\n{"body": ""}\n')
    kind = source_kinds()["text"]
    found = list(kind.read(kind.settings(), Request(str(tmp_path), None, max_tokens=None, patience_s=1)))
    assert [document.text for document in found] == ["one", "", ""] * 4
    assert capsys.readouterr().out.splitlines() == [
        "  d.jsonl has no column text: its column 'body' is read",
        "  a.jsonl: rows without text are skipped: 2, the first is a.jsonl:2",
        "  b.csv: rows without text are skipped: 2, the first is b.csv:3",
        "  c.parquet: rows without text are skipped: 2, the first is c.parquet:1",
        "  d.jsonl: rows without text are skipped: 2, the first is d.jsonl:2",
    ]
    pages = list(iter_fineweb_edu(path=str(tmp_path / "a.jsonl"), shuffle=False))  # the same rule in streams
    assert [page.text for page in pages] == ["one", "", ""]
    assert "a.jsonl: rows without text are skipped: 2" in capsys.readouterr().out


def test_a_parquet_file_with_two_columns_of_one_name_or_missing_rows_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), file)
    with pytest.raises(ValueError, match=r"x\.parquet has two columns 'text': rename one"):
        list(iter_text(str(file)))
    pq.write_table(pa.table({"text": ["a", "b"]}), file)
    batches = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches", lambda self, **options: (b.slice(1) for b in batches(self, **options))
    )
    with pytest.raises(ValueError, match=r"x\.parquet .*1 of its 2 rows can be read"):
        list(iter_text(str(file)))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(
    "text",
    [
        CYRILLIC,
        "Η γρήγορη αλεπού πηδάει πάνω από το σκυλί.\n" * 3,
        "כל בני האדם נולדו בני חורין ושווים בערכם.\n" * 3,
        "सभी मनुष्यों को गौरव और अधिकारों के मामले में.\n" * 3,
    ],
)
def test_utf_16_without_a_mark_shows_in_other_alphabets_too(text: str, encoding: str) -> None:
    assert decode_text(text.encode(encoding)) == (text, encoding)


@pytest.mark.parametrize(
    ("before", "stray", "after"),
    [(1, b"caf\xe9 ", "café "), (0, b"\x93so\x94 ", "“so” "), (9, b"\xc3", "\ufffd"), (3, b"\x81 ", "\ufffd ")],
)
def test_a_stray_byte_does_not_spoil_the_utf_8_around_it(before: int, stray: bytes, after: str) -> None:
    danish = "Smørrebrød og øl på en bænk ved åen, hvor mågerne flyver. "
    data = (danish * before).encode() + stray + (danish * (9 - before)).encode()
    assert decode_text(data) == (danish * before + after + danish * (9 - before), "utf-8 with strays of cp1252")


def test_chats_in_another_encoding_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = json.dumps({"messages": [{"role": "assistant", "content": LATIN}]}, ensure_ascii=False) + "\n"
    (tmp_path / "a.jsonl").write_bytes((line * 2).encode("cp1252"))
    assert len(list(iter_own_chats(str(tmp_path)))) == 2
    assert capsys.readouterr().out == "  a.jsonl is not UTF-8: read as cp1252\n"


def test_dialogues_are_cut_whatever_their_line_ends(tmp_path: Path) -> None:
    text = "user: a\nassistant: b\n\n<dialogue>\n\nuser: c\nassistant: d\n"
    for line_end in ("\n", "\r\n"):
        (tmp_path / "a.txt").write_bytes(text.replace("\n", line_end).encode())
        found = [sample.text for sample in iter_dialogues(str(tmp_path / "a.txt"), delimiter="\n\n<dialogue>\n\n")]
        assert found == [f"user: a{line_end}assistant: b", f"user: c{line_end}assistant: d"]


def test_a_surrogate_pair_is_one_character(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "\\ud83d\\ude00"}\n')
    assert [sample.text for sample in iter_text(str(tmp_path))] == ["\U0001f600"]


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    """The file is truncated at several lengths, or its text is not UTF-8."""
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": [f"row {i}" for i in range(50)]}), file)
    data = file.read_bytes()
    for length in range(1, len(data), len(data) // 20):
        file.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"x\.parquet is no parquet file, or is damaged"):
            list(iter_text(str(file)))
    wrong = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    pq.write_table(pa.table({"text": wrong}), file)
    with pytest.raises(ValueError, match=r"x\.parquet is no parquet file, or is damaged"):
        list(iter_text(str(file)))


def test_a_document_beyond_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "holes.md").open("wb") as f:
        f.truncate(1 << 40)  # a sparse file, which takes no space
    with pytest.raises(ValueError, match=r"holes\.md is one document of more than"):
        list(iter_roam(str(tmp_path)))
    (tmp_path / "holes.md").unlink()
    monkeypatch.setattr(files, "MAX_DOCUMENT_BYTES", 4 << 20)
    (tmp_path / "bomb.md.gz").write_bytes(gzip.compress(bytes(5 << 20)))
    with pytest.raises(ValueError, match=r"bomb\.md\.gz is one document of more than"):
        list(iter_text(str(tmp_path)))
    (tmp_path / "bomb.md.gz").unlink()
    (tmp_path / "bomb.jsonl.zst").write_bytes(zstandard.compress(GOOD_LINE + b" " * (5 << 20)))
    with pytest.raises(ValueError, match=r"bomb\.jsonl\.zst has a line of more than"):
        list(iter_text(str(tmp_path)))


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        list(iter_text(str(tmp_path / "nowhere")))


@pytest.mark.slow
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


@pytest.mark.parametrize("read", [iter_dolly_sft, iter_oasst1_sft, iter_wikitext])
@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("x.jsonl", GOOD_LINE + b'{"text": "\\ud800"}\n', "line 2, spells half a character"),
        ("x.jsonl", GOOD_LINE + b'{"text": "caf\xe9"}\n', "is not UTF-8 but cp1252: save it as UTF-8"),
        ("x.jsonl", b"", "holds no row"),
        ("x.jsonl", b'{"text": "a", "text": "b"}', "line 1, is not JSON .*'text' occurs twice"),
        ("x.parquet", b"PAR1 not really", "no parquet file"),
    ],
)
def test_damage_in_a_copy_of_a_hub_dataset_is_named(
    tmp_path: Path, read: Callable[..., Iterator[object]], name: str, data: bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(data)
    options = {"streaming": True} if read is iter_wikitext else {}
    with pytest.raises(HubError, match=rf"{name}.*{sentence}"):
        list(read(path=str(tmp_path), **options))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "data"), [("x.jsonl", b"{broken\n"), ("x.parquet", b"PAR1 not really")])
def test_damage_in_a_streamed_copy_is_named(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(HubError, match=rf"{name}.* is (not JSON|no parquet file)"):
        list(iter_fineweb_edu(path=str(tmp_path)))


def test_text_in_a_copy_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(b" = Title = \n caf\xe9 \n" * 9)
    with pytest.raises(HubError, match=r"train\.txt is not UTF-8 but \w+: save it as UTF-8"):
        list(iter_wikitext(path=str(tmp_path), streaming=True))
    (tmp_path / "train.txt").unlink()
    (tmp_path / "train.jsonl").write_bytes(b'{"line": "no text"}\n')
    with pytest.raises(ValueError, match=r"row 0 of train, has no text in text; its keys are \['line'\]"):
        list(iter_wikitext(path=str(tmp_path), streaming=True))


def test_a_mark_at_the_head_of_a_copy_is_no_damage(tmp_path: Path) -> None:
    row = {"instruction": "q", "context": "", "response": "a", "category": "x"}
    (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(row).encode())
    (chat,) = iter_dolly_sft(path=str(tmp_path), shuffle=False)
    assert chat.messages[0].content == "q"


def test_a_smaller_shuffle_buffer_than_asked_for_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "books.jsonl").write_text("".join(json.dumps({"text": f"book {i}"}) + "\n" for i in range(500)))
    path = str(tmp_path / "books.jsonl")

    def places(**options: int) -> list[int]:
        return [int(book.text.removeprefix("book ")) for book in iter_gutenberg(dataset_id=path, **options)]

    capped = places(shuffle_buffer_size=10_000)
    assert "books are shuffled 100 at a time, not 10,000" in capsys.readouterr().out
    assert places(shuffle_buffer_size=100) == capped
    assert capsys.readouterr().out == ""
    assert places(shuffle_buffer_size=10) != capped


@pytest.mark.parametrize(
    ("sentence", "encoding"),
    [
        ("Smørrebrød og øl på en bænk ved åen, hvor mågerne flyver over vandet.\n", "cp1252"),
        ("L'été dernier, nous avons mangé des pâtes à la crème près de l'église.\n", "cp1252"),
        ("Hij heeft een café geopend in één straat; de coöperatie is blij.\n", "cp1252"),
        ("Příliš žluťoučký kůň úpěl ďábelské ódy na břehu řeky.\n", "cp1250"),
        ("Съешь же ещё этих мягких французских булок да выпей чаю.\n", "cp1251"),
        ("Η γρήγορη αλεπού πηδάει πάνω από το σκυλί.\n", "cp1253"),
    ],
)
def test_single_byte_encodings_are_guessed_western_ones_first(sentence: str, encoding: str) -> None:
    assert decode_text((sentence * 4).encode(encoding)) == (sentence * 4, encoding)


def test_a_csv_reader_that_loses_characters_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lossy:
        def __init__(self, lines: Iterator[str], **options: Any) -> None:
            self._rows, self.line_num = reader(lines, **options), 0

        def __iter__(self) -> Iterator[list[str]]:
            return self

        def __next__(self) -> list[str]:
            return [cell.strip() for cell in next(self._rows)]

    reader = csv.reader
    (tmp_path / "x.csv").write_text("n,text\n1, a b\n2,c\n")
    monkeypatch.setattr(csv, "reader", Lossy)
    with pytest.raises(ValueError, match=r"x\.csv: 1 of 12 characters are in no cell"):
        list(iter_text(str(tmp_path)))
