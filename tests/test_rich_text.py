"""PDF, Word and HTML files: what they say, and that hostile ones are refused by name."""

from __future__ import annotations

import builtins
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.data.kinds import source_kinds
from niels_gpt.data.readers import office_files
from niels_gpt.data.rich_text import iter_rich_text
from niels_gpt.data.types import Request

PAGE = "<style>p {}</style><script>alert(1)</script><h1>Rye</h1><p>is <b>dark</b> &amp; <a href='http://x'>sour</a></p>"


@pytest.fixture
def libraries() -> tuple[Any, Any]:
    """(pypdf, python-docx)"""
    pytest.importorskip("inscriptis", reason="inscriptis is not installed: no HTML was read")
    pypdf = pytest.importorskip("pypdf", reason="pypdf is not installed: no PDF was read")
    return pypdf, pytest.importorskip("docx", reason="python-docx is not installed: no .docx was read")


def pdf(text: str) -> bytes:
    """A PDF of one page with a line of text."""
    stream = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET".encode()
    page = b"/MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >>"
    objects = (
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R " + page + b" >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    )
    out, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"trailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % len(out)
    return out + b"xref\n0 6\n0000000000 65535 f \n" + table + end


def encrypted(pypdf: Any, data: bytes, **passwords: str) -> bytes:
    writer, out = pypdf.PdfWriter(), io.BytesIO()
    writer.append(io.BytesIO(data))
    writer.encrypt(**passwords, algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


def docx_file(docx: Any) -> bytes:
    document, out = docx.Document(), io.BytesIO()
    document.add_heading("Rye", 1)
    document.add_paragraph("is dark.")
    table = document.add_table(2, 2)
    for row in range(2):
        for column in range(2):
            table.cell(row, column).text = f"{row}{column}"
    document.add_paragraph("The end.")
    document.save(out)
    return out.getvalue()


def zip_of(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", content)
    return out.getvalue()


def test_text_of_every_form_in_subfolders(
    libraries: tuple[Any, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pypdf, docx = libraries
    (tmp_path / "papers").mkdir()
    for name, data in {
        "papers/a.pdf": pdf("The river rises."),
        "b.docx": docx_file(docx),
        "c.html": PAGE.encode(),
        "d.htm": "<p>Sm\xf8rrebr\xf8d, p\xe5 dansk, og mere af det samme br\xf8d til alle</p>".encode("latin-1"),
        "e.pdf": encrypted(pypdf, pdf("for all to read"), user_password="", owner_password="mine"),
        "f.html": b"<p> </p>",
        "g.md": b"left to kind text",
    }.items():
        (tmp_path / name).write_bytes(data)
    found = {sample.meta["path"]: sample.text for sample in iter_rich_text(str(tmp_path))}
    assert found == {
        "b.docx": "Rye\nis dark.\n00\t01\n10\t11\nThe end.",
        "c.html": "Rye\n\nis dark & sour",
        "d.htm": "Smørrebrød, på dansk, og mere af det samme brød til alle",
        "e.pdf": "for all to read",
        "papers/a.pdf": "The river rises.",
    }
    assert "f.html holds no text (are its pages pictures?): left out" in capsys.readouterr().out
    kind = source_kinds()["rich_text"]
    request = Request(str(tmp_path), None, max_tokens=None, patience_s=1)
    assert kind.slices
    parts = kind.slices(kind.settings(glob="*.pdf"), request, 1)
    assert [part.files for part in parts] == [("e.pdf",), ("papers/a.pdf",)]
    assert [row.id for part in parts for row in kind.read(kind.settings(), part)] == ["e.pdf", "papers/a.pdf"]
    assert [sample.text for sample in iter_rich_text(str(tmp_path / "papers/a.pdf"))] == ["The river rises."]


def test_hostile_files_are_refused_by_name(
    libraries: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pypdf, docx = libraries
    monkeypatch.setattr(office_files, "MOST_UNPACKED_BYTES", 1 << 20)
    for suffix, data, words in (
        (".pdf", encrypted(pypdf, pdf("x"), user_password="secret"), "it is encrypted; save it without a password"),
        (".pdf", pdf("x")[:200], ""),
        (".pdf", b"", "empty"),
        (".pdf", b"MZ" * 100, ""),
        (".docx", zip_of(b"\0" * (2 << 20)), "unpacked it has 2,097,152 bytes, more than 1,048,576"),
        (".docx", zip_of(b"<w"), ""),
        (".docx", docx_file(docx)[:3000], "not a zip file"),
        (".docx", b"", "not a zip file"),
    ):
        file = tmp_path / f"bad{suffix}"
        file.write_bytes(data)
        with pytest.raises(ValueError, match=rf"bad{suffix} cannot be read as {suffix} \(.*{words}.*mend it or remove"):
            list(iter_rich_text(str(file)))
    deep = tmp_path / "deep.html"
    deep.write_text("<div>" * 100_000 + "x")
    assert len(list(iter_rich_text(str(deep)))) <= 1  # read or named as empty; no crash


def test_half_a_character_is_made_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(office_files.READERS, ".pdf", lambda data: "half \ud800 a character")
    (tmp_path / "a.pdf").touch()
    assert office_files.read_office_file(str(tmp_path / "a.pdf"), ".pdf") == "half \ufffd a character"


def test_without_the_libraries_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office_files, "find_spec", lambda module: None if module != "docx" else builtins)
    with pytest.raises(ValueError, match=r"needs pypdf, inscriptis, not installed here: `pip install .*documents"):
        list(iter_rich_text(str(tmp_path)))
