"""Text out of PDF, Word and HTML files, by libraries that are an extra: pypdf, python-docx, inscriptis.

Such files come from anywhere. What is encrypted, damaged or blown up is refused by name; nothing in them is run or
fetched.
"""

from __future__ import annotations

import html
import io
import logging
import re
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from niels_gpt.data.readers.counting import check_whole
from niels_gpt.data.readers.files import encoding_remark, read_bytes
from niels_gpt.data.readers.web_pages import read_web_page

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
