"""Source kind `rich_text`: the user's PDF, Word and HTML files, read by optional libraries; a document is a file."""

import html
import io
import logging
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from importlib.util import find_spec
from typing import Annotated, Any

from niels_gpt.data.readers.files import decode_text, encoding_remark, read_bytes, text_files, unpacked_suffix
from niels_gpt.data.types import Document, Request
from niels_gpt.data.types import Settings as BaseSettings
from niels_gpt.files.messages import say_above_bar


def check_whole(expected: str, got: str) -> None:
    """Raise a ValueError if a character of `expected`, except whitespace, occurs less often in `got`.

    Order and additions are ignored: a table may be laid out column by column, and lists get bullets.
    """
    visible = "".join(expected.split())
    missing = Counter(visible) - Counter(got)
    if missing:
        there = set(got.split())
        words = [word for word in dict.fromkeys(expected.split()) if word not in there][:3]
        where = f", the first at {' '.join(words)[:60]!r}" if words else ""
        raise ValueError(f"{missing.total():,} of {len(visible):,} characters were lost{where}")


# libxml2 drops CDATA sections and everything after </body> or </html>.
_END = re.compile(r"</(?:body|html)\s*>", re.IGNORECASE)
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_DECLARED = re.compile(rb"""<(?:meta\s[^<>]*?charset|\?xml\s[^<>]*?encoding)\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
_AMPERSAND = "\U0010ffff"  # replaces & during layout: inscriptis turns "&amp;lt;", a visible "&lt;", into "<"
_HEAD_BYTES = 4096  # searched for a declared encoding; browsers search 1024


def _html_text(data: bytes) -> tuple[str, str | None]:
    """Return the visible text of a page, without scripts, styles and link targets, and a remark on its encoding.

    Raise a ValueError if any visible character of the page is missing from the text.
    """
    page, encoding = _decode(data)
    page = page.replace("\0", "\ufffd").replace("--!>", "-->")  # as browsers parse them
    page = _END.sub("", _CDATA.sub(lambda found: html.escape(found[1]), page))
    text, hidden = _lay_out(page)
    words = _Words()
    words.feed(page)
    # Add the unparsed rest. `close()` is not used: Python versions differ in whether it keeps unterminated markup.
    words.handle_data(html.unescape(words.rawdata))
    check_whole("".join(words.found), text + hidden)
    return text, encoding_remark(encoding)


def _decode(data: bytes) -> tuple[str, str]:
    """Return (page, encoding); a page that is not Unicode is decoded as it declares, if that works."""
    text, encoding = decode_text(data)
    if not encoding.startswith("utf-") and (declared := _DECLARED.search(data[:_HEAD_BYTES])):
        name = declared[1].decode("ascii", errors="replace").lower()
        # Browsers read Latin-1 as Windows-1252, which has letters where Latin-1 has control characters.
        name = "cp1252" if name in ("iso-8859-1", "latin1", "us-ascii") else name
        with suppress(LookupError, UnicodeError):
            return data.decode(name), name
    return text, encoding


def _lay_out(page: str) -> tuple[str, str]:
    """Return (displayed text, text of hidden elements other than scripts and styles)."""
    import lxml.html
    from inscriptis.html_engine import Inscriptis
    from inscriptis.html_properties import Display
    from lxml import etree

    hidden: list[str] = []

    class Walk(Inscriptis):
        def _parse_html_tree(self, state: Any, tree: Any) -> Any:
            """Do the library's walk without recursion, whose limit in Python is about 1,000 nested elements."""
            for event, node in etree.iterwalk(tree, events=("start", "end")):
                if event == "start":
                    state.apply_starttag_layout(node.tag, node.attrib)
                    if start := self.start_tag_handler_dict.get(node.tag):
                        start(state, node.attrib)
                    state.tags[-1].canvas.open_tag(state.tags[-1])
                    text = node.text
                else:
                    if end := self.end_tag_handler_dict.get(node.tag):
                        end(state)
                    closed = state.tags.pop()
                    closed.canvas.close_tag(closed)
                    text = node.tail
                around = state.tags[-1]
                around.write(text and text.replace("&", _AMPERSAND))
                if text and around.display is Display.none and around.tag not in ("script", "style"):
                    hidden.append(text)
            return state.canvas

    # Without huge_tree, libxml2 silently drops everything after 256 open elements; with it, after 2,048.
    parser = lxml.html.HTMLParser(encoding="utf-8", huge_tree=True, remove_comments=True, remove_pis=True)
    try:
        tree = lxml.html.document_fromstring(page.encode("utf-8"), parser=parser)
    except etree.ParserError:  # the page is empty or has only comments
        return "", ""
    for fault in parser.error_log.filter_from_fatals():
        raise ValueError(f"line {fault.line}: {fault.message.partition(', use')[0]}")
    return Walk(tree).get_text().strip().replace(_AMPERSAND, "&"), "".join(hidden)


class _Words(HTMLParser):
    """Collector of a page's text, except scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:
            self.found.append(data)


# The libraries (pypdf, python-docx, inscriptis) are an optional extra. Files are untrusted: those that are encrypted,
# damaged or zip bombs raise an error that names them; nothing in them is executed or fetched.

MOST_UNPACKED_BYTES = 256 << 20  # of a .docx, which is a zip archive: a 40 KB zip bomb unpacks to gigabytes
_PACKAGES = {"pypdf": "pypdf", "docx": "python-docx", "inscriptis": "inscriptis"}
# Parts of a .docx that hold its text, in reading order. Comments do not count as text of the document.
_PARTS = ("header", "document.main", "footnotes", "endnotes", "footer")
# Skipped elements: properties (a w:tab there is a tab stop), field codes, text moved away by a tracked change, and the
# copy of a text box for old versions of Word. Deleted text is in w:delText, which is not read either.
_UNREAD = ("pPr", "rPr", "tblPr", "trPr", "tcPr", "sectPr", "instrText", "moveFrom", "Fallback")
_CHARACTERS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_RAW_TEXT = re.compile(rb"<w:t(?:\s[^>]*)?>([^<]*)</w:t>")
_RAW_UNREAD = re.compile(rb"<(mc:Fallback|w:moveFrom)(?:\s[^>]*)?>.*?</\1>", re.DOTALL)
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # lone surrogates: PDFs can have them, UTF-8 cannot


def read_office_file(file: str, suffix: str) -> tuple[str, str | None]:
    """Return (text, remark for the user) of a file; raise a ValueError naming it if it cannot be read completely."""
    data = read_bytes(file)
    try:
        text, remark = READERS[suffix](data)
    except Exception as error:  # these libraries raise many different types
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{file} cannot be read as {suffix} ({reason}): fix or remove it") from error
    return _HALF_CHARACTER.sub("\ufffd", text), remark


def _pdf_text(data: bytes) -> tuple[str, str | None]:
    """Return the pages' text separated by blank lines, and a remark listing pages without text (scans)."""
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # its warnings about broken tables do not help the user
    pdf = pypdf.PdfReader(io.BytesIO(data))
    if pdf.is_encrypted and not pdf.decrypt(""):
        raise ValueError("it is encrypted; save it without a password")
    pages = [page.extract_text().strip() for page in pdf.pages]
    blank = [str(number) for number, page in enumerate(pages, start=1) if not page]
    named = ", ".join(blank[:10]) + (", ..." if blank[10:] else "")
    remark = f"has {len(blank)} pages of {len(pages)} without text: {named}"
    return "\n\n".join(page for page in pages if page), remark if 0 < len(blank) < len(pages) else None


def _docx_text(data: bytes) -> tuple[str, None]:
    """Return headers, then paragraphs and tables (one line per row) in document order, then notes and footers.

    The XML is walked here because python-docx's own text lacks text boxes, content controls, footnotes, nested tables
    and tracked insertions.
    """
    import docx
    from lxml import etree

    with zipfile.ZipFile(io.BytesIO(data)) as archive:  # never reads more of a member than its declared size
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
    return "\n".join(filter(None, dict.fromkeys(texts))), None  # first, odd and even pages may share a header


def _word_text(node: Any) -> str:
    """Return the text of a WordprocessingML element; paragraphs and table rows end with a newline."""
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


READERS: dict[str, Callable[[bytes], tuple[str, str | None]]] = {
    ".pdf": _pdf_text,
    ".docx": _docx_text,
    ".html": _html_text,
    ".htm": _html_text,
}

KIND = "rich_text"
SUFFIXES = tuple(READERS)


@dataclass(frozen=True)
class Settings(BaseSettings):
    glob: Annotated[str | None, 'which files of the folder, by their path in it ("2024/*.pdf"); null takes all'] = None


def documents(settings: Settings, request: Request) -> Iterator[Document]:
    """Yield one document per file, by its relative path; report and skip files without text."""
    if missing := [package for module, package in _PACKAGES.items() if find_spec(module) is None]:
        install = "`pip install -c constraints.txt -e '.[documents]'`"
        raise ValueError(f"kind rich_text needs {', '.join(missing)}, not installed here: {install}")
    for file, name in text_files(request.path, SUFFIXES, glob=settings.glob, files=request.files):
        text, remark = read_office_file(file, unpacked_suffix(name))
        if remark:
            say_above_bar(f"  {name} {remark}")
        if text.strip():
            yield Document(id=name, text=text)
        else:
            say_above_bar(f"  {name} holds no text (are its pages pictures?): skipped")
