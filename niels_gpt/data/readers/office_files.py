"""Text out of PDF, Word and HTML files, by libraries that are an extra: pypdf, python-docx, inscriptis.

Such files come from anywhere. What is encrypted, damaged or blown up is refused by name; nothing in them is run or
fetched.
"""

from __future__ import annotations

import io
import logging
import re
import zipfile
from collections.abc import Callable
from importlib.util import find_spec

from niels_gpt.data.readers.files import decode_text, read_bytes

MOST_UNPACKED_BYTES = 256 << 20  # of a .docx, which is a zip archive: a bomb of 40 KB would unpack to gigabytes
_PACKAGES = {"pypdf": "pypdf", "docx": "python-docx", "inscriptis": "inscriptis"}
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # which PDFs can spell, and no file of text can hold


def check_installed() -> None:
    missing = [package for module, package in _PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise ValueError(
            f"kind rich_text needs {', '.join(missing)}, not installed here: "
            "`pip install -c constraints.txt -e '.[documents]'`"
        )


def read_office_file(file: str, suffix: str) -> str:
    """Its text; a ValueError names a file that has none to give."""
    data = read_bytes(file)
    try:
        text = READERS[suffix](data)
    except Exception as error:  # the ways in which these libraries fail are many
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{file} cannot be read as {suffix} ({reason}): mend it or remove it") from error
    return _HALF_CHARACTER.sub("\ufffd", text)


def _pdf_text(data: bytes) -> str:
    """Page by page, a blank line between two."""
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # its remarks on each broken table are not for a reader
    pdf = pypdf.PdfReader(io.BytesIO(data))
    if pdf.is_encrypted and not pdf.decrypt(""):
        raise ValueError("it is encrypted; save it without a password")
    pages = (page.extract_text().strip() for page in pdf.pages)
    return "\n\n".join(page for page in pages if page)


def _docx_text(data: bytes) -> str:
    """Paragraphs, and tables with a line a row, in their order."""
    import docx
    from docx.table import Table

    with zipfile.ZipFile(io.BytesIO(data)) as archive:  # which reads no more of a member than it declares
        size = sum(member.file_size for member in archive.infolist())
    if size > MOST_UNPACKED_BYTES:
        raise ValueError(f"unpacked it has {size:,} bytes, more than {MOST_UNPACKED_BYTES:,}")
    lines: list[str] = []
    for block in docx.Document(io.BytesIO(data)).iter_inner_content():
        if isinstance(block, Table):
            lines += ["\t".join(cell.text for cell in row.cells) for row in block.rows]
        else:
            lines.append(block.text)
    return "\n".join(lines).strip()


def _html_text(data: bytes) -> str:
    """As it would be read, without scripts and styles; links are their words."""
    from inscriptis import get_text

    return str(get_text(decode_text(data)[0])).strip()


READERS: dict[str, Callable[[bytes], str]] = {
    ".pdf": _pdf_text,
    ".docx": _docx_text,
    ".html": _html_text,
    ".htm": _html_text,
}
