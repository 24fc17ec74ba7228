"""PDF, Word and HTML files of one's own, by optional libraries; a document is a file.

A document is a file.
"""

from __future__ import annotations

import html
import io
import logging
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar

from niels_gpt.data.kinds import Taken
from niels_gpt.data.readers.files import (
    decode_text,
    encoding_remark,
    read_bytes,
    slice_folder,
    text_files,
    unpacked_suffix,
)
from niels_gpt.data.types import Document, PretrainSample, Request
from niels_gpt.files.messages import say_above_bar

_NAMED = 3  # words


def check_whole(expected: str, got: str) -> None:
    """Raise a ValueError if a character of `expected`, white space apart, occurs less often in `got`.

    Order does not count: a table may be laid out column by column, and a list gets bullets.
    """
    given = Counter(expected)
    missing = {character: count for character, count in (given - Counter(got)).items() if not character.isspace()}
    if not missing:
        return
    lost, total = sum(missing.values()), sum(map(len, expected.split()))
    there = set(got.split())
    words = [word for word in dict.fromkeys(expected.split()) if word not in there][:_NAMED]
    where = f", the first at {' '.join(words)[:60]!r}" if words else ""
    raise ValueError(f"{lost:,} of {total:,} characters were lost{where}")


# libxml2 drops what stands behind </body> or </html>, and CDATA sections.
_END = re.compile(r"</(?:body|html)\s*>", re.IGNORECASE)
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_DECLARED = re.compile(rb"""<(?:meta\s[^<>]*?charset|\?xml\s[^<>]*?encoding)\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
_AMPERSAND = "\U0010ffff"  # stands for & while inscriptis lays out: it would take "&amp;lt;", a visible "&lt;", for "<"
_HEAD_BYTES = 4096  # browsers look for a declared encoding in the first 1024


def read_web_page(data: bytes) -> tuple[str, str]:
    """Return (visible text, encoding), without scripts and styles; links are their words.

    Raise a ValueError if any visible character of the page is missing from the text.
    """
    page, encoding = _decode(data)
    page = page.replace("\0", "\ufffd").replace("--!>", "-->")  # as browsers read them
    page = _END.sub("", _CDATA.sub(lambda found: html.escape(found[1]), page))
    text, hidden = _lay_out(page)
    words = _Words()
    words.feed(page)
    # What waits for its end. `close` is not asked: some versions of Python drop markup that never ends, others keep it.
    words.handle_data(html.unescape(words.rawdata))
    check_whole("".join(words.found), text + hidden)
    return text, encoding


def _decode(data: bytes) -> tuple[str, str]:
    """Decode a page. One that is not UTF-8 is in the encoding that it declares, if it declares a true one."""
    text, encoding = decode_text(data)
    if encoding != "utf-8" and not encoding.startswith("utf-") and (declared := _DECLARED.search(data[:_HEAD_BYTES])):
        name = declared[1].decode("ascii", errors="replace").lower()
        # Browsers read Latin-1 as Windows-1252, which has letters where Latin-1 has control characters.
        name = "cp1252" if name in ("iso-8859-1", "latin1", "us-ascii") else name
        try:
            return data.decode(name), name
        except (LookupError, UnicodeError):
            pass
    return text, encoding


def _lay_out(page: str) -> tuple[str, str]:
    """Return (text, text of elements that are not displayed, scripts and styles apart)."""
    from inscriptis.html_engine import Inscriptis
    from inscriptis.html_properties import Display
    from lxml import etree
    from lxml.html import HTMLParser as Parser
    from lxml.html import document_fromstring

    hidden: list[str] = []

    class Walk(Inscriptis):
        def _parse_html_tree(self, state: Any, tree: Any) -> Any:
            """Do what the library does, without recursion: Python's limit is at about 1,000 elements."""

            def handle(handlers: dict[str, Callable[..., None] | None], *arguments: Any) -> None:
                if handler := handlers.get(node.tag):
                    handler(state, *arguments)

            def write(text: str | None) -> None:
                current = state.tags[-1]
                current.write(text and text.replace("&", _AMPERSAND))
                if text and current.display is Display.none and current.tag not in ("script", "style"):
                    hidden.append(text)

            for event, node in etree.iterwalk(tree, events=("start", "end")):
                if event == "start":
                    state.apply_starttag_layout(node.tag, node.attrib)
                    handle(self.start_tag_handler_dict, node.attrib)
                    current = state.tags[-1]
                    current.canvas.open_tag(current)
                    write(node.text)
                else:
                    handle(self.end_tag_handler_dict)
                    closed = state.tags.pop()
                    closed.canvas.close_tag(closed)
                    write(node.tail)
            return state.canvas

    # huge_tree: without it libxml2 drops everything behind 256 open elements in silence; with it, behind 2,048.
    parser = Parser(encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True)
    try:
        tree = document_fromstring(page.encode("utf-8"), parser=parser)
    except etree.ParserError:  # nothing, or nothing but comments
        return "", ""
    for fault in parser.error_log.filter_from_fatals():
        raise ValueError(f"line {fault.line}: {fault.message.partition(', use')[0]}")
    return Walk(tree).get_text().strip().replace(_AMPERSAND, "&"), "".join(hidden)


class _Words(HTMLParser):
    """Collects a page's text, that of scripts and styles apart."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:
            self.found.append(data)


# Text out of PDF, Word and HTML files, by libraries that are an extra: pypdf, python-docx, inscriptis.
#
# Such files come from anywhere. What is encrypted, damaged or blown up is refused by name; nothing in them is run or
# fetched.

MOST_UNPACKED_BYTES = 256 << 20  # of a .docx, which is a zip archive: a bomb of 40 KB would unpack to gigabytes
_PACKAGES = {"pypdf": "pypdf", "docx": "python-docx", "inscriptis": "inscriptis"}
# Parts of a .docx that hold its text, in the order in which they are read. Comments are not text of the document.
_PARTS = ("header", "document.main", "footnotes", "endnotes", "footer")
# Properties (a w:tab there is a tab stop), field codes, text moved away by a tracked change, and the copy of a text box
# for old versions of Word. Deleted text has an element of its own, w:delText.
_UNREAD = ("pPr", "rPr", "tblPr", "trPr", "tcPr", "sectPr", "instrText", "moveFrom", "Fallback")
_CHARACTERS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_RAW_TEXT = re.compile(rb"<w:t(?:\s[^>]*)?>([^<]*)</w:t>")
_RAW_UNREAD = re.compile(rb"<(mc:Fallback|w:moveFrom)(?:\s[^>]*)?>.*?</\1>", re.DOTALL)
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # which PDFs can spell, and no file of text can hold


def check_installed() -> None:
    missing = [package for module, package in _PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise ValueError(
            f"kind rich_text needs {', '.join(missing)}, not installed here: "
            "`pip install -c constraints.txt -e '.[documents]'`"
        )


def read_office_file(file: str, suffix: str) -> tuple[str, list[str]]:
    """Return (text, remarks for the user); raise a ValueError that names a file that cannot be read whole."""
    data = read_bytes(file)
    try:
        text, remarks = READERS[suffix](data)
    except Exception as error:  # the ways in which these libraries fail are many
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{file} cannot be read as {suffix} ({reason}): mend it or remove it") from error
    return _HALF_CHARACTER.sub("\ufffd", text), remarks


def _pdf_text(data: bytes) -> tuple[str, list[str]]:
    """Read page by page, with a blank line between two. Pages without text, as scans are, are remarked on."""
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # its remarks on each broken table are not for a reader
    pdf = pypdf.PdfReader(io.BytesIO(data))
    if pdf.is_encrypted and not pdf.decrypt(""):
        raise ValueError("it is encrypted; save it without a password")
    pages = [page.extract_text().strip() for page in pdf.pages]
    blank = [str(number) for number, page in enumerate(pages, start=1) if not page]
    named = ", ".join(blank[:10]) + (", ..." if blank[10:] else "")
    remarks = [f"has {len(blank)} pages of {len(pages)} without text: {named}"] if 0 < len(blank) < len(pages) else []
    return "\n\n".join(page for page in pages if page), remarks


def _docx_text(data: bytes) -> tuple[str, list[str]]:
    """Read paragraphs, and tables with a line a row, in their order; headers before them, notes and footers behind.

    The parts are walked here: python-docx's own text lacks text boxes, content controls, footnotes, nested tables and
    tracked insertions.
    """
    import docx
    from lxml import etree

    with zipfile.ZipFile(io.BytesIO(data)) as archive:  # which reads no more of a member than it declares
        size = sum(member.file_size for member in archive.infolist())
    if size > MOST_UNPACKED_BYTES:
        raise ValueError(f"unpacked it has {size:,} bytes, more than {MOST_UNPACKED_BYTES:,}")
    texts: list[str] = []
    parts = list(docx.Document(io.BytesIO(data)).part.package.iter_parts())
    for kind in _PARTS:
        for part in parts:
            if part.content_type.endswith(f".{kind}+xml"):
                text = _word_text(etree.fromstring(part.blob)).strip()
                raw = b"\n".join(_RAW_TEXT.findall(_RAW_UNREAD.sub(b"", part.blob)))
                check_whole(html.unescape(raw.decode("utf-8", errors="ignore")), text)
                texts.append(text)
    return "\n".join(text for text in dict.fromkeys(texts) if text), []  # first, odd and even pages may share a header


def _word_text(node: Any) -> str:
    """Return the text of an element of WordprocessingML; that of a paragraph or a row ends with a line end."""
    name = node.tag.rpartition("}")[2] if isinstance(node.tag, str) else ""
    if name == "t":
        return node.text or ""
    if name in _UNREAD:
        return ""
    if name == "br" and any(kind in ("page", "column") for kind in node.attrib.values()):
        return ""
    inner = [_word_text(child) for child in node]
    if name == "tr":
        cells = (text for child, text in zip(node, inner, strict=True) if text or str(child.tag).endswith("}tc"))
        return "\t".join(cell.strip("\n") for cell in cells) + "\n"
    text = _CHARACTERS.get(name, "") + "".join(inner)
    return f"\n{text}" if name == "txbxContent" else f"{text}\n" if name == "p" else text


def _html_text(data: bytes) -> tuple[str, list[str]]:
    text, encoding = read_web_page(data)
    remark = encoding_remark(encoding)
    return text, [remark] if remark else []


READERS: dict[str, Callable[[bytes], tuple[str, list[str]]]] = {
    ".pdf": _pdf_text,
    ".docx": _docx_text,
    ".html": _html_text,
    ".htm": _html_text,
}


KIND = "rich_text"

SUFFIXES = tuple(READERS)


@dataclass(frozen=True)
class Settings:
    splits: ClassVar[tuple[str, ...]] = ("document",)

    glob: Annotated[str | None, 'which files of the folder, by their path in it ("2024/*.pdf"); null takes all'] = None


def documents(settings: Settings, request: Request) -> Iterator[Document]:
    for sample in iter_rich_text(request.path, glob=settings.glob, files=request.files):
        yield Document(id=sample.meta["path"], text=sample.text)


def slices(settings: Settings, request: Request, text_bytes: int) -> list[Request]:
    return slice_folder(request, SUFFIXES, glob=settings.glob, text_bytes=text_bytes)


def takes(settings: Settings) -> Taken:
    return Taken(SUFFIXES, packed=True, glob=settings.glob)


def iter_rich_text(
    path: str, *, glob: str | None = None, files: Sequence[str] | None = None
) -> Iterator[PretrainSample]:
    """Every file as a sample; meta holds its place below the folder. One without a word in it is named, and left out.
    With `files`, only these of the folder are read."""
    check_installed()
    for file, name in text_files(path, SUFFIXES, glob=glob, files=files):
        text, remarks = read_office_file(file, unpacked_suffix(name))
        for remark in remarks:
            say_above_bar(f"  {name} {remark}")
        if text.strip():
            yield PretrainSample(text=text, source=KIND, meta={"path": name})
        else:
            say_above_bar(f"  {name} holds no text (are its pages pictures?): left out")
