"""Tests of PDF, Word and HTML files: their text is extracted, and hostile files are refused by name."""

import builtins
import html
import io
import re
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.data import rich_text
from niels_gpt.data.kinds import source_kinds
from niels_gpt.data.types import Document, Request

PAGE = "<style>p {}</style><script>alert(1)</script><h1>Rye</h1><p>is <b>dark</b> &amp; <a href='http://x'>sour</a></p>"


@pytest.fixture(scope="module")
def libraries() -> tuple[Any, Any]:
    """Return (pypdf, python-docx); skip the test if one of the libraries is missing."""
    pytest.importorskip("inscriptis", reason="inscriptis is not installed: no HTML was read")
    pypdf = pytest.importorskip("pypdf", reason="pypdf is not installed: no PDF was read")
    return pypdf, pytest.importorskip("docx", reason="python-docx is not installed: no .docx was read")


def read(path: Path) -> list[Document]:
    return list(rich_text.documents(rich_text.Settings(), Request(str(path), None, max_tokens=None, patience_s=1)))


def pdf(text: str) -> bytes:
    """Return a PDF of one page with a line of text."""
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


def test_text_of_every_format_is_read_from_subfolders(
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
    found = {document.id: document.text for document in read(tmp_path)}
    assert found == {
        "b.docx": "Rye\nis dark.\n00\t01\n10\t11\nThe end.",
        "c.html": "Rye\n\nis dark & sour",
        "d.htm": "Smørrebrød, på dansk, og mere af det samme brød til alle",
        "e.pdf": "for all to read",
        "papers/a.pdf": "The river rises.",
    }
    assert "f.html holds no text (are its pages pictures?): skipped" in capsys.readouterr().out
    kind = source_kinds()["rich_text"]
    request = Request(str(tmp_path), None, max_tokens=None, patience_s=1)
    parts = kind.requests(kind.settings(glob="*.pdf"), request, 1)
    assert [part.files for part in parts] == [("e.pdf",), ("papers/a.pdf",)]
    assert [row.id for part in parts for row in kind.read(kind.settings(), part)] == ["e.pdf", "papers/a.pdf"]
    assert [document.text for document in read(tmp_path / "papers/a.pdf")] == ["The river rises."]


def test_hostile_files_are_refused_by_name(
    libraries: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pypdf, docx = libraries
    monkeypatch.setattr(rich_text, "MOST_UNPACKED_BYTES", 1 << 20)
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
        with pytest.raises(ValueError, match=rf"bad{suffix} cannot be read as {suffix} \(.*{words}.*fix or remove it"):
            read(file)


def read_page(tmp_path: Path, page: str | bytes) -> str:
    (tmp_path / "page.html").write_bytes(page if isinstance(page, bytes) else page.encode())
    (document,) = read(tmp_path / "page.html")
    return document.text


@pytest.mark.parametrize("element", ["div", "ul", "b", "font"])
@pytest.mark.parametrize("depth", [255, 256, 257, 1000, 2000])
def test_html_comes_out_whole_however_deep_it_is_nested(
    libraries: tuple[Any, Any], tmp_path: Path, element: str, depth: int
) -> None:
    for end in (f"</{element}>" * depth, ""):
        page = f"<p>before</p>{f'<{element}>' * depth}inside{end}<p>after</p>"
        assert read_page(tmp_path, page).split() == ["before", "inside", "after"]


@pytest.mark.parametrize("depth", [2048, 10_000, 100_000])
def test_html_nested_too_deep_to_parse_is_refused_by_name(
    libraries: tuple[Any, Any], tmp_path: Path, depth: int
) -> None:
    with pytest.raises(ValueError, match=r"page\.html cannot be read as \.html \(line 3: Excessive depth.*: 2048\)"):
        read_page(tmp_path, f"<p>before</p>\n\n{'<div>' * depth}inside{'</div>' * depth}<p>after</p>")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<html><body>one</body></html>\n<html><body>two</body></html> three", "one two three"),
        ("<p>one <![CDATA[two < three]]> four</p>", "one two < three four"),
        ("one <script src='x.js'/> two <title/> three <style></style>", "one two three"),
        (
            "one <?php echo 1 ?> two <!-- no --> three <!-- no --!> four <![if !IE]> five <![endif]>",
            "one two three four five",
        ),
        (
            "<noscript>one</noscript> <template>two</template> <noframes>three</noframes> <xmp><b></xmp>",
            "one two three <b>",
        ),
        ("zero \0 after <p>it", "zero \ufffd after it"),
        (
            "&lt;b&gt; &amp;lt;b&amp;gt; &amp;amp;lt; (&amp;current) &check; &notit;",
            "<b> &lt;b&gt; &amp;lt; (&current) ✓ ¬it;",
        ),
        ("<table><tr><td>&amp;lt;<br><table><tr><td>&amp;gt;</table></table>", "&lt; &gt;"),
        ("seen <p style='display: none'>not <!-- --> this <b>nor</b> this</p> <title>nor this</title> too", "seen too"),
        ("<!-- nothing -->text", "text"),
    ],
)
def test_text_that_a_parser_drops_is_read(libraries: tuple[Any, Any], tmp_path: Path, page: str, text: str) -> None:
    assert " ".join(read_page(tmp_path, page).split()) == text


def element(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    names = st.sampled_from(["p", "b", "div", "ul", "li", "table", "tr", "td", "pre", "q", "span", "h1", "blockquote"])
    return st.builds("<{0}>{1}</{0}>".format, names, st.lists(inner, max_size=4).map("".join))


@pytest.mark.slow
@given(
    page=st.recursive(
        st.text(st.characters(exclude_categories=["Cs"])).map(html.escape)
        | st.sampled_from(["<br>", "<!--c-->", "&amp;lt;"]),
        element,
        max_leaves=20,
    )
)
def test_no_visible_character_of_a_page_is_lost_or_taken_for_lost(libraries: tuple[Any, Any], page: str) -> None:
    text, _ = rich_text.READERS[".html"](f"<body>{page}".encode())
    words = "".join(html.unescape(re.sub("<[^>]*>", "", page)).replace("\0", "\ufffd").split())
    assert not Counter(words) - Counter(text)


@pytest.mark.parametrize("page", ["one <!-- two <p>three", "one <a href='x>two</a> <p>three", "one <?two three"])
def test_text_behind_markup_that_never_ends_is_named_with_a_count(
    libraries: tuple[Any, Any], tmp_path: Path, page: str
) -> None:
    with pytest.raises(
        ValueError, match=r"page\.html .*\d+ of \d+ characters were lost, the first at .*fix or remove it"
    ):
        read_page(tmp_path, page)


def test_a_reader_that_loses_text_is_noticed(
    libraries: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out = rich_text._lay_out
    monkeypatch.setattr(rich_text, "_lay_out", lambda page: (lay_out(page)[0].replace("three", ""), ""))
    with pytest.raises(ValueError, match=r"\(5 of 11 characters were lost, the first at 'three'\)"):
        read_page(tmp_path, "<p>one two</p> <i>three</i>")
    word_text = rich_text._word_text
    monkeypatch.setattr(rich_text, "_word_text", lambda node: word_text(node).replace("dark", ""))
    (tmp_path / "a.docx").write_bytes(docx_file(libraries[1]))
    with pytest.raises(ValueError, match=r"a\.docx .*\(4 of 25 characters were lost, the first at 'dark\.'\)"):
        read(tmp_path / "a.docx")


def test_a_declared_encoding_is_preferred_to_a_guess_and_reported(
    libraries: tuple[Any, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = "<meta charset='{0}'><meta http-equiv='Content-Type' content='text/html; charset={0}'><p>{1}</p>"
    for encoding, word in (("koi8-r", "мир"), ("shift_jis", "日本"), ("iso-8859-1", "“smørrebrød”")):
        data = page.format(encoding, word).encode(encoding if word[0] != "“" else "cp1252")
        assert read_page(tmp_path, data) == word
        said = "cp1252" if encoding == "iso-8859-1" else encoding
        assert f"page.html is not UTF-8: read as {said}" in capsys.readouterr().out
    assert read_page(tmp_path, page.format("koi8-r", "smørrebrød")) == "smørrebrød"  # UTF-8, whatever it declares
    assert read_page(tmp_path, page.format("no-such", "é").encode("latin-1")) == "é"
    assert read_page(tmp_path, page.format("utf-8", "smørrebrød").encode("utf-16")) == "smørrebrød"


WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
COMPATIBLE = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'


def test_a_docx_is_read_with_boxes_notes_controls_nested_tables_and_insertions(
    libraries: tuple[Any, Any], tmp_path: Path
) -> None:
    from docx.opc.packuri import PackURI
    from docx.opc.part import Part
    from docx.oxml import parse_xml

    def run(text: str) -> str:
        return f"<w:r><w:t>{text}</w:t></w:r>"

    def paragraph(inner: str) -> str:
        return f"<w:p>{inner}</w:p>"

    document, out = libraries[1].Document(), io.BytesIO()
    document.sections[0].header.paragraphs[0].text = "The header"
    document.sections[0].footer.paragraphs[0].text = "The footer"
    document.add_paragraph("plain\ttabbed")
    box = f"<w:txbxContent>{paragraph(run('a box'))}</w:txbxContent>"
    alternatives = (
        f"<mc:AlternateContent><mc:Choice>{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback></mc:AlternateContent>"
    )

    def cell(inner: str) -> str:
        return f"<w:tc>{inner}</w:tc>"

    nested = f"<w:tbl><w:tr>{cell(paragraph(run('nested')))}</w:tr></w:tbl>"
    cells = cell(paragraph(run("left")) + nested) + cell(paragraph("")) + cell(paragraph(run("right")))
    for block in (
        paragraph(f"<w:pPr><w:tabs><w:tab/></w:tabs></w:pPr>{run('around')}<w:r>{alternatives}</w:r>"),
        f"<w:sdt><w:sdtContent>{paragraph(run('controlled'))}</w:sdtContent></w:sdt>",
        paragraph(f"<w:ins>{run('inserted')}</w:ins><w:del><w:r><w:delText>deleted</w:delText></w:r></w:del>"),
        paragraph(f"<w:moveFrom>{run('moved')}</w:moveFrom><w:moveTo>{run('moved')}</w:moveTo>"),
        paragraph(f"<w:fldSimple>{run('a field')}</w:fldSimple><w:r><w:instrText>PAGE</w:instrText></w:r>"),
        f"<w:tbl><w:tr><w:trPr/>{cells}</w:tr></w:tbl>",
        paragraph(run("the end &amp; all")),
    ):
        tag, rest = re.match(r"<(w:\w+)(.*)", block, re.DOTALL).groups()  # type: ignore[union-attr]
        document.element.body.append(parse_xml(f"<{tag} {WORD} {COMPATIBLE}{rest}"))
    notes = f"<w:footnotes {WORD}><w:footnote>{paragraph(run('a footnote'))}</w:footnote></w:footnotes>"
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.footnotes+xml"
    part = Part(PackURI("/word/footnotes.xml"), kind, notes.encode(), document.part.package)
    document.part.relate_to(part, "http://schemas.openxmlformats.org/officeDocument/2006/relationships/footnotes")
    document.save(out)
    (tmp_path / "a.docx").write_bytes(out.getvalue())
    (document,) = read(tmp_path)
    assert document.text.replace("\n\n", "\n").split("\n") == [
        *("The header", "plain\ttabbed", "around", "a box", "controlled", "inserted", "moved", "a field"),
        *("left", "nested\t\tright", "the end & all", "a footnote", "The footer"),
    ]


def test_pages_of_a_pdf_without_text_are_named(
    libraries: tuple[Any, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = libraries[0].PdfWriter()
    for text in ("one", "", "three", ""):
        writer.append(io.BytesIO(pdf(text)))
    writer.write(tmp_path / "a.pdf")
    (document,) = read(tmp_path)
    assert document.text == "one\n\nthree"
    assert "a.pdf has 2 pages of 4 without text: 2, 4" in capsys.readouterr().out


def test_a_lone_surrogate_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rich_text.READERS, ".pdf", lambda data: ("half \ud800 a character", None))
    (tmp_path / "a.pdf").touch()
    assert rich_text.read_office_file(str(tmp_path / "a.pdf"), ".pdf") == ("half \ufffd a character", None)


def test_without_the_libraries_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rich_text, "find_spec", lambda module: None if module != "docx" else builtins)
    with pytest.raises(ValueError, match=r"needs pypdf, inscriptis, not installed here: `pip install .*documents"):
        read(tmp_path)
