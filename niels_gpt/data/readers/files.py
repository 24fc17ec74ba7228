"""Files below a folder: listed in sorted order, unpacked, decoded, and cut into dialogues.

What is no file (a FIFO, a socket, a device, a link to nothing) is refused by name before it is opened.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from niels_gpt.data.types import Document, PretrainSample, Request
from niels_gpt.files.messages import say_above_bar

MAX_DOCUMENT_BYTES = 1 << 30  # a document is held whole, several times over; Arrow's own bound is twice as far
_TOO_SHORT_TO_TELL = 64  # bytes; of so few the commonest encoding that is not UTF-8 is the better guess
_LONG_ENOUGH_FOR_ZEROS = 8  # bytes; in fewer, a zero is a zero
_CHUNK_BYTES = 1 << 20
# The longer marks first: UTF-32's begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_NO_FILES = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_NEVER_STILL = ("/proc/", "/sys/")  # made up while they are read, some of them without an end


def list_files(root_dir: str, suffixes: Collection[str] | None = None) -> list[str]:
    """Absolute paths of all files below `root_dir` that end in one of `suffixes` (None: in anything), sorted.

    Links are followed, each real folder once (a loop ends). Hidden files and folders (.obsidian, .trash, .git) are
    left out, and so is every file of another ending.
    """
    root = os.path.abspath(root_dir)
    if not os.path.isdir(root):
        raise FileNotFoundError(f"the folder {root_dir} does not exist")
    paths: list[str] = []
    folders = [root]
    seen: set[tuple[int, int]] = set()
    while folders:
        folder = folders.pop()
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        visible = [entry.path for entry in entries_of(folder) if not entry.name.startswith(".")]
        folders += [path for path in reversed(visible) if os.path.isdir(path)]
        chosen = [path for path in visible if suffixes is None or os.path.splitext(path)[1] in suffixes]
        paths += [path for path in chosen if not os.path.isdir(path)]
    return sorted(paths)


def shown(path: str) -> str:
    """A path to print: bytes of a name that are not UTF-8 as \\xNN."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")


def unpacked_suffix(path: str) -> str:
    """The ending of what is in the file: ".md" of a.md and of a.md.gz."""
    name, suffix = os.path.splitext(path)
    return os.path.splitext(name)[1] if suffix in (".gz", ".zst") else suffix


def slice_files(path: str, names: Iterable[str], text_bytes: int) -> list[tuple[str, ...]]:
    """Files of a folder in groups of about so many bytes, in order."""
    groups: list[list[str]] = []
    room = 0
    for name in names:
        if room <= 0:
            groups.append([])
            room = text_bytes
        groups[-1].append(name)
        room -= os.path.getsize(os.path.join(path, name))
    return [tuple(group) for group in groups]


def slice_folder(request: Request, suffixes: tuple[str, ...], *, glob: str | None, text_bytes: int) -> list[Request]:
    """A request for a folder's files of these endings, cut into some of about so many bytes; none of a single file."""
    if not os.path.isdir(request.path):
        return []
    names = [name for _, name in text_files(request.path, suffixes, glob=glob)]
    return [replace(request, files=group) for group in slice_files(request.path, names, text_bytes)]


def text_files(
    path: str, suffixes: tuple[str, ...], *, glob: str | None, files: Sequence[str] | None = None
) -> Iterator[tuple[str, str]]:
    """(file, its place below the folder) of a file or of all in a folder that have such an ending; or of `files`."""
    if files is not None:
        for name in files:
            yield os.path.join(os.path.abspath(path), name), name
        return
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist")
    if os.path.isfile(path):
        if unpacked_suffix(path) not in suffixes:
            raise ValueError(f"{path} is no text file: {', '.join(suffixes)} can be read")
        yield os.path.abspath(path), os.path.basename(path)
        return
    found = False
    for file in list_files(path, {*suffixes, ".gz", ".zst"}):
        name = Path(file).relative_to(os.path.abspath(path)).as_posix()
        if unpacked_suffix(file) in suffixes and (glob is None or PurePosixPath(name).match(glob)):
            found = True
            yield file, name
    if glob is not None and not found:
        raise ValueError(f"no file in {path} is called like {glob!r}: mend the glob, or leave it out for all")


def file_documents(samples: Iterator[PretrainSample]) -> Iterator[Document]:
    """Yield documents out of files. Say once for each file what its reader had to decide: in which encoding it is, if
    not UTF-8, which column was read, if none is called text, and how many rows of it hold no text."""
    said: set[tuple[str, str]] = set()
    blank: dict[str, tuple[int, str]] = {}  # {file: (how many rows, the first)}
    for sample in samples:
        file, path = sample.meta["file"], sample.meta["path"]
        for remark in (encoding_remark(sample.meta["encoding"]), _column_remark(sample.meta.get("column"))):
            if remark and (file, remark) not in said:
                said.add((file, remark))
                say_above_bar(f"  {file} {remark}")
        if path != file and not sample.text.strip():
            count, first = blank.get(file, (0, path))
            blank[file] = count + 1, first
        yield Document(id=path, text=sample.text)
    for file, (count, first) in blank.items():
        say_above_bar(f"  {file}: rows without text are skipped: {count:,}, the first is {first}")


def encoding_remark(encoding: str) -> str | None:
    """Return what to say of a file in this encoding; None of UTF-8."""
    damage = ": what could not be read is shown as U+FFFD" if encoding.startswith("damaged") else ""
    return None if encoding == "utf-8" else f"is not UTF-8: read as {encoding}{damage}"


def _column_remark(column: str | None) -> str | None:
    return None if column is None else f"has no column text: its column {column!r} is read"


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked where its name says that it is packed."""
    if not os.path.lexists(path):
        raise FileNotFoundError(f"{path} does not exist")
    for fault in file_faults(path):
        raise ValueError(fault)
    try:
        # Not to wait, should it have become a FIFO since.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as plain:
            if path.endswith(".gz"):
                with gzip.GzipFile(fileobj=plain) as stream:
                    yield cast(BinaryIO, stream)
            elif path.endswith(".zst"):
                import pyarrow as pa

                # Arrow notices a file that was cut; the package zstandard returns what there is, without a word.
                with pa.CompressedInputStream(plain, "zstd") as unpacked:
                    yield cast(BinaryIO, io.BufferedReader(unpacked))  # which knows lines
            else:
                yield plain
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read or unpacked ({error}): mend it or remove it") from error


def read_bytes(path: str) -> bytes:
    """A whole file, unpacked. One that no memory holds is refused before it is read, or as soon as it shows."""
    parts: list[bytes] = []
    size = 0
    with opened(path) as stream:
        expected = os.path.getsize(path)
        while expected <= MAX_DOCUMENT_BYTES and (part := stream.read(_CHUNK_BYTES)):
            parts.append(part)
            size += len(part)
            expected = max(expected, size)
    if expected > MAX_DOCUMENT_BYTES:
        raise ValueError(
            f"{path} is one document of more than {MAX_DOCUMENT_BYTES:,} bytes: cut it into several files, or rows of "
            "a .jsonl"
        )
    return b"".join(parts)


def read_lines(path: str) -> Iterator[bytes]:
    """The lines of a file, unpacked, one at a time."""
    with opened(path) as stream:
        while line := stream.readline(MAX_DOCUMENT_BYTES + 1):
            if len(line) > MAX_DOCUMENT_BYTES:
                raise ValueError(f"{path} has a line of more than {MAX_DOCUMENT_BYTES:,} bytes: break it into several")
            yield line


def decode_text(data: bytes) -> tuple[str, str]:
    """(text, encoding). UTF-8 where it is; else what its byte order mark, its zeros or its statistics say.

    The mark is no part of the text. Line ends are kept. What is damaged becomes U+FFFD, and the encoding says so.
    """
    wide = encoding_of_mark(data)
    if wide is not None:
        mark, encoding = wide
        return _decoded(data[len(mark) :], encoding)
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        pass
    if (mostly := _decoded_with_strays(data)) is not None:
        return mostly, "utf-8 with strays of cp1252"
    encoding = _guessed_encoding(data)
    try:
        text = data.decode(encoding)
        text.encode("utf-8")  # some encodings can write half a character
        return text, encoding
    except UnicodeError:
        return _decoded(data, "utf-8")


def _decoded_with_strays(data: bytes) -> str | None:
    """Decode UTF-8 with a few bytes of cp1252 in it, as pasted or appended text leaves them; None where it is not that.

    In no other encoding are five of six characters beyond ASCII valid UTF-8.
    """
    text = data.decode("utf-8", errors="replace")
    strays = text.count("\ufffd") - data.count("\ufffd".encode())
    beyond_ascii = len(text) - len(text.encode("ascii", errors="ignore"))
    return data.decode("utf-8", errors="niels_gpt.stray") if beyond_ascii > 6 * strays else None


def _decode_stray(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    if error.reason == "unexpected end of data":  # half a character, where a file was cut
        return "\ufffd", error.end
    return error.object[error.start : error.end].decode("cp1252", errors="replace"), error.end


codecs.register_error("niels_gpt.stray", _decode_stray)


def _guessed_encoding(data: bytes) -> str:
    """Of text with a byte a character. Western Europe's, by far the most common, wherever it is about as plausible as
    the best: by statistics alone Danish, French and Dutch sentences were taken for those of Eastern Europe."""
    from charset_normalizer import from_bytes

    found = [] if len(data) < _TOO_SHORT_TO_TELL else list(from_bytes(data))
    western = [match for match in found if "cp1252" in (match.encoding, *match.could_be_from_charset)]
    if not found or (western and western[0].chaos <= found[0].chaos + 0.02):
        return "cp1252"
    return found[0].encoding


def encoding_of_mark(data: bytes) -> tuple[bytes, str] | None:
    """Return (byte order mark, encoding) at a text's head.

    UTF-16 also shows without one: each second byte is the high one, below 16 in the letters of most alphabets (Latin 0,
    Greek 3, Cyrillic 4, Thai 14), and 0 in spaces and line ends.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return mark, encoding
    if b"\0" in data and len(data) >= _LONG_ENOUGH_FOR_ZEROS:
        even, odd = data[::2], data[1::2]
        for low, high, encoding in ((even, odd, "utf-16-le"), (odd, even, "utf-16-be")):
            if 0 not in low and len(high.translate(None, delete=bytes(range(16)))) < 0.3 * len(high):
                return b"", encoding
    return None


def _decoded(data: bytes, encoding: str) -> tuple[str, str]:
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError:
        return data.decode(encoding, errors="replace"), f"damaged {encoding.upper()}"


def entries_of(folder: str) -> list[os.DirEntry[str]]:
    """What lies in a folder, by name."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise ValueError(f"the folder {shown(folder)} cannot be read ({error.strerror}): mend or remove it") from error


def file_faults(path: str) -> Iterator[str]:
    """Why this is no file to read, if it is none."""
    if fault := name_fault(path):
        yield fault
        return
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        yield f"{path} is a link to nothing: mend it or remove it" if os.path.islink(path) else f"{path} does not exist"
        return
    except OSError as error:
        yield f"{path} cannot be read ({error.strerror}): mend it or remove it"
        return
    real = os.path.realpath(path)
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _NO_FILES if is_kind(mode)), "a folder")
        yield f"{path} is {kind}, no file: remove it"
    elif real.startswith(_NEVER_STILL):
        yield f"{path} cannot be read as a file, it leads to {real}: remove it"


def name_fault(path: str) -> str | None:
    """What is wrong with the name of a file or a folder: its bytes may be any."""
    try:
        os.path.basename(path).encode("utf-8")
    except UnicodeEncodeError:
        return f"the name of {shown(path)} is not UTF-8: rename it"
    return None


# A file of dialogues, with a delimiter between two. The kinds `primer` and `dialogues` both read it here, so that a
# number means the same dialogue in both, and one rule holds out the same ones.


def iter_dialogues(path: str, *, delimiter: str) -> Iterator[PretrainSample]:
    """Every dialogue as a sample, in whatever encoding the file is."""
    text, encoding = decode_text(read_bytes(path))
    for i, dialogue in enumerate(cut_dialogues(text, delimiter)):
        meta = {"path": str(i), "file": os.path.basename(path), "encoding": encoding}
        yield PretrainSample(text=dialogue, source="primer", meta=meta)


def cut_dialogues(text: str, delimiter: str) -> list[str]:
    """Split a text at every delimiter, whose line ends may also be Windows' own."""
    pattern = re.escape(delimiter).replace("\\\n", "\r?\n")
    return [block.strip() for block in re.split(pattern, text) if block.strip()]
