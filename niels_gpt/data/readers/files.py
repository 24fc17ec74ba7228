"""File reading for the source kinds: list a folder, decompress, detect the encoding, and split dialogues.

Anything but a regular file (a FIFO, a socket, a device, a broken link) raises an error that names it, before opening.
"""

import codecs
import io
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO, cast

from annotated_types import MinLen

from niels_gpt.data.types import Document, PretrainSample, Settings
from niels_gpt.files.messages import say_above_bar

MAX_DOCUMENT_BYTES = 1 << 30  # a document is held in memory in several copies; Arrow's own limit is 2 GiB
_TOO_SHORT_TO_TELL = 64  # bytes; too few for statistics, so shorter text that is not UTF-8 counts as cp1252
_CHUNK_BYTES = 1 << 20
_CODECS = {".gz": "gzip", ".zst": "zstd"}
# UTF-32 before UTF-16: the little-endian mark of UTF-32 starts with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_NO_FILES = {"p": "a FIFO", "s": "a socket", "c": "a device", "b": "a device", "d": "a folder"}  # by letter of `ls -l`


def list_files(root_dir: str) -> list[str]:
    """Return the sorted absolute paths of all files below `root_dir`.

    Symbolic links are followed; each real folder is visited once, so loops end. Hidden files and folders (.obsidian,
    .trash, .git) are skipped.
    """
    root = os.path.abspath(root_dir)
    if not os.path.isdir(root):
        raise FileNotFoundError(f"the folder {root_dir} does not exist")
    paths: list[str] = []
    folders, seen = [root], set[str]()
    while folders:
        folder = folders.pop()
        if (real := os.path.realpath(folder)) in seen:
            continue
        seen.add(real)
        visible = [entry.path for entry in entries_of(folder) if not entry.name.startswith(".")]
        folders += [path for path in reversed(visible) if os.path.isdir(path)]
        paths += [path for path in visible if not os.path.isdir(path)]
    return sorted(paths)


def files_in(folder: str, glob: str | None) -> Iterator[tuple[str, str]]:
    """Yield (absolute path, path relative to the folder) of its visible files that `glob` selects (None: all)."""
    root = os.path.abspath(folder)
    for path in list_files(root):
        name = Path(path).relative_to(root).as_posix()
        if glob is None or PurePosixPath(name).match(glob):
            yield path, name


def shown(path: str) -> str:
    """Return a printable path: bytes of a name that are not UTF-8 become \\xNN."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")


def unpacked_suffix(path: str) -> str:
    """Return the suffix without a compression suffix: ".md" for both a.md and a.md.gz."""
    name, suffix = os.path.splitext(path)
    return os.path.splitext(name)[1] if suffix in _CODECS else suffix


def text_files(
    path: str, suffixes: tuple[str, ...], *, glob: str | None, files: Sequence[str] | None = None
) -> list[tuple[str, str]]:
    """Return (absolute path, path relative to the folder) of a single file, or of the files in a folder.

    Files of a folder are selected by suffix, compressed ones included, and by `glob`; or they are exactly `files`.
    """
    root = os.path.abspath(path)
    if files is not None:
        return [(os.path.join(root, name), name) for name in files]
    if os.path.isfile(path):
        if unpacked_suffix(path) not in suffixes:
            raise ValueError(f"{path} is no text file: {', '.join(suffixes)} can be read")
        return [(root, os.path.basename(path))]
    chosen = [(file, name) for file, name in files_in(path, glob) if unpacked_suffix(name) in suffixes]
    if glob is not None and not chosen:
        raise ValueError(f"no file in {path} is called like {glob!r}: fix the glob, or remove it to read all files")
    return chosen


def file_documents(samples: Iterator[PretrainSample]) -> Iterator[Document]:
    """Yield the samples as documents, and print once per file what its reader had to decide.

    Printed are the encoding if it is not UTF-8, the column read if none is called text, and the number of blank rows.
    """
    said: set[tuple[str, str]] = set()
    blank: dict[str, tuple[int, str]] = {}  # {file: (number of blank rows, the first)}
    for sample in samples:
        file, path, column = sample.meta["file"], sample.meta["path"], sample.meta.get("column")
        of_column = f"has no column text: its column {column!r} is read" if column is not None else None
        for remark in (encoding_remark(sample.meta["encoding"]), of_column):
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
    """Return the message for a file in this encoding; None for UTF-8."""
    damage = ": what could not be read is shown as U+FFFD" if encoding.startswith("damaged") else ""
    return None if encoding == "utf-8" else f"is not UTF-8: read as {encoding}{damage}"


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open a file as a binary stream, decompressed if its name ends in .gz or .zst."""
    if not os.path.lexists(path):
        raise FileNotFoundError(f"{path} does not exist")
    if fault := file_fault(path):
        raise ValueError(fault)
    try:
        with open(path, "rb") as plain:
            codec = _CODECS.get(os.path.splitext(path)[1])
            if codec is None:
                yield plain
            else:
                import pyarrow as pa

                # Arrow raises on a truncated file; the zstandard package silently returns what there is.
                with pa.CompressedInputStream(plain, codec) as unpacked:
                    yield cast(BinaryIO, io.BufferedReader(unpacked))  # adds readline
    except OSError as error:
        raise ValueError(f"{path} cannot be read or unpacked ({error}): fix or remove it") from error


def read_bytes(path: str) -> bytes:
    """Return a whole file, decompressed; raise a ValueError as soon as it exceeds `MAX_DOCUMENT_BYTES`."""
    data = bytearray()
    with opened(path) as stream:
        while len(data) <= MAX_DOCUMENT_BYTES and (part := stream.read(_CHUNK_BYTES)):
            data += part
    if len(data) > MAX_DOCUMENT_BYTES:
        raise ValueError(
            f"{path} is one document of more than {MAX_DOCUMENT_BYTES:,} bytes: cut it into several files, or rows of "
            "a .jsonl"
        )
    return bytes(data)


def read_lines(path: str) -> Iterator[tuple[str, str]]:
    """Yield (line, encoding) of a file, decompressed, one at a time; each line's encoding is detected by itself."""
    with opened(path) as stream:
        line = stream.readline(MAX_DOCUMENT_BYTES + 1)
        if _encoding_of_mark(line)[1] not in ("", "utf-8"):
            # In UTF-16 and UTF-32 a newline byte may be part of another character, so decode before splitting.
            text, encoding = decode_text(read_bytes(path))
            yield from ((part, encoding) for part in text.split("\n"))
            return
        while line:
            if len(line) > MAX_DOCUMENT_BYTES:
                raise ValueError(f"{path} has a line of more than {MAX_DOCUMENT_BYTES:,} bytes: break it into several")
            yield decode_text(line)
            line = stream.readline(MAX_DOCUMENT_BYTES + 1)


def decode_text(data: bytes) -> tuple[str, str]:
    """Return (text, encoding), detected by byte order mark, zero bytes, validity as UTF-8, or statistics.

    The mark is removed; line ends are kept. Undecodable bytes become U+FFFD, and the encoding is then called "damaged",
    or "utf-8 with strays of cp1252" if most of the text is UTF-8.
    """
    mark, encoding = _encoding_of_mark(data)
    if encoding:
        return _decoded(data[len(mark) :], encoding)
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        pass
    if (mostly := _decoded_with_strays(data)) is not None:
        return mostly, "utf-8 with strays of cp1252"
    encoding = _guessed_encoding(data)
    with suppress(UnicodeError):
        text = data.decode(encoding)
        text.encode("utf-8")  # raises if the encoding produced a lone surrogate
        return text, encoding
    return _decoded(data, "utf-8")


def _decoded_with_strays(data: bytes) -> str | None:
    """Decode UTF-8 that contains a few cp1252 bytes, as pasted or appended text leaves them; None if it is not that.

    In no other encoding are 5 of 6 non-ASCII characters valid UTF-8.
    """
    text = data.decode("utf-8", errors="replace")
    strays = text.count("\ufffd") - data.count("\ufffd".encode())
    beyond_ascii = len(text) - len(text.encode("ascii", errors="ignore"))
    return data.decode("utf-8", errors="niels_gpt.stray") if beyond_ascii > 6 * strays else None


def _decode_stray(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    if error.reason == "unexpected end of data":  # an incomplete character, where a file was truncated
        return "\ufffd", error.end
    return error.object[error.start : error.end].decode("cp1252", errors="replace"), error.end


codecs.register_error("niels_gpt.stray", _decode_stray)


def _guessed_encoding(data: bytes) -> str:
    """Guess the encoding of text that is not UTF-8, preferring cp1252 unless another is clearly more plausible.

    cp1252 (Western Europe) is by far the most common. By statistics alone, Danish, French and Dutch sentences were
    decoded with Eastern European encodings.
    """
    from charset_normalizer import from_bytes

    found = [] if len(data) < _TOO_SHORT_TO_TELL else list(from_bytes(data))
    western = [match for match in found if "cp1252" in (match.encoding, *match.could_be_from_charset)]
    if not found or (western and western[0].chaos <= found[0].chaos + 0.02):
        return "cp1252"
    return found[0].encoding


def _encoding_of_mark(data: bytes) -> tuple[bytes, str]:
    """Return (byte order mark, encoding) of text in UTF-16, UTF-32 or marked UTF-8; the encoding of other text is "".

    UTF-16 is recognized without a mark, too: every second byte is a high byte, which is below 16 for the letters of
    most alphabets (Latin 0, Greek 3, Cyrillic 4, Thai 14), and 0 for spaces and line ends.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return mark, encoding
    if b"\0" in data and len(data) >= 8:  # in shorter data, zeros are no evidence
        even, odd = data[::2], data[1::2]
        for low, high, encoding in ((even, odd, "utf-16-le"), (odd, even, "utf-16-be")):
            if 0 not in low and len(high.translate(None, delete=bytes(range(16)))) < 0.3 * len(high):
                return b"", encoding
    return b"", ""


def _decoded(data: bytes, encoding: str) -> tuple[str, str]:
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError:
        return data.decode(encoding, errors="replace"), f"damaged {encoding.upper()}"


def entries_of(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, sorted by name."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise ValueError(f"the folder {shown(folder)} cannot be read ({error.strerror}): fix or remove it") from error


def file_fault(path: str) -> str | None:
    """Return an error message if the path is not a readable regular file, else None."""
    if fault := name_fault(path):
        return fault
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return f"{path} is a link to nothing: fix or remove it" if os.path.islink(path) else f"{path} does not exist"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror}): fix or remove it"
    return None if stat.S_ISREG(mode) else f"{path} is {_NO_FILES[stat.filemode(mode)[0]]}, no file: remove it"


def name_fault(path: str) -> str | None:
    """Return an error message if the name of a file or folder is not UTF-8, else None."""
    name = os.path.basename(path)
    return None if shown(name) == name else f"the name of {shown(path)} is not UTF-8: rename it"


# The kinds `primer` and `dialogues` share this code, so that a dialogue has the same number in both and one split rule
# holds out the same dialogues.

DIALOGUE_DELIM = "\n\n<dialogue>\n\n"


@dataclass(frozen=True)
class DialogueSettings(Settings):
    """Parameters of the kinds `primer` and `dialogues`."""

    delimiter: Annotated[str, MinLen(1), "what stands between two dialogues"] = DIALOGUE_DELIM


def iter_dialogues(path: str, *, delimiter: str) -> Iterator[PretrainSample]:
    """Yield every dialogue of a file as a sample; the encoding of the file is detected."""
    text, encoding = decode_text(read_bytes(path))
    for i, dialogue in enumerate(cut_dialogues(text, delimiter)):
        meta = {"path": str(i), "file": os.path.basename(path), "encoding": encoding}
        yield PretrainSample(text=dialogue, source="primer", meta=meta)


def cut_dialogues(text: str, delimiter: str) -> list[str]:
    """Split a text at every delimiter, with LF or CRLF line ends; return the non-blank blocks, stripped."""
    pattern = re.escape(delimiter).replace("\\\n", "\r?\n")
    return [block.strip() for block in re.split(pattern, text) if block.strip()]
