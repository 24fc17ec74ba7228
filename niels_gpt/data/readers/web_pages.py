"""HTML as a reader sees it: parsed by lxml, laid out by inscriptis, and counted against an independent parser."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

from niels_gpt.data.readers.counting import check_whole
from niels_gpt.data.readers.files import decode_text

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
