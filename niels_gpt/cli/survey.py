"""Survey a folder of text before a run: size, encodings, secrets, personal details, copies, empty files.

All files are listed. About `_READ_BYTES` of their text are read, spread evenly over the files, and totals are estimated
from them. Errors that would stop the loader are found here first.
"""

import math
import os
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice

from niels_gpt.data.readers.files import list_files, shown, unpacked_suffix
from niels_gpt.data.secrets import Findings, Screen, counted
from niels_gpt.data.text import SUFFIXES, iter_text
from niels_gpt.data.types import Document
from niels_gpt.files.messages import plural, visible

PLAIN = (".txt", ".md")  # one document per file; in all other formats, one per row
_READ_BYTES = 20_000_000  # of text; larger folders are sampled
_SEARCH_S = 20.0  # CPU seconds: pages of telephone numbers are searched at only 20 kB/s
_SEARCHED_AT_ONCE = 1 << 16  # characters between two checks of the CPU time
_COUNTED_CHARACTERS = 2_000_000  # characters of text in which distinct characters and words are counted
_LEAST_COUNTED = 2000  # characters per document
_COVERED = 0.9995  # share of characters that a trained tokenizer spells without byte fallback
_PACKED = 3  # estimated bytes of text per byte of a compressed file

_PIECE = re.compile(r"\s?\S+")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ufffd]")


@dataclass(frozen=True)
class Survey:
    """Contents of a folder; `documents` and `text_bytes` are estimates if not all of it was read."""

    path: str
    files: Mapping[str, int]  # readable files, by extension
    left_out: Mapping[str, int]  # skipped files, by extension
    documents: int  # without copies
    text_bytes: int
    sizes: tuple[int, ...]  # of the documents read, in bytes, ascending
    encodings: Mapping[str, int]  # documents read, by encoding
    characters: int  # distinct ones that a trained tokenizer must spell
    words: int  # distinct ones in the counted text
    glob: str | None = None  # pattern of the files to read, if some are broken
    faults: tuple[str, ...] = ()  # errors of the files that `glob` skips
    binary: tuple[str, ...] = ()  # files with a text extension that look binary
    copies: int = 0  # documents read with the same text as another
    empty: int = 0  # files and rows read without text
    secrets: Mapping[str, int] = field(default_factory=dict)  # found in the searched text, by kind
    personal: Mapping[str, int] = field(default_factory=dict)  # e-mail addresses, telephone numbers, national ids
    sample: tuple[int, int] | None = None  # (bytes searched, bytes of all text) if not all was searched

    @property
    def longest(self) -> int:
        return self.sizes[-1]

    @property
    def held_out(self) -> float:
        """Return the fraction of the text to hold out: a tenth, and of large folders about 1 MB, enough to score."""
        return float(f"{max(0.001, min(0.1, 1e6 / self.text_bytes)):.2g}")

    @property
    def trained_bytes(self) -> float:
        return self.text_bytes * (1 - self.held_out)


@dataclass
class _Row:
    """A file of plain text, or a row of a table, that was read."""

    file: str
    text: str
    size: int  # bytes
    encoding: str
    weight: float = 1.0  # rows of the folder that this one stands for


def survey_folder(path: str) -> Survey:
    """Survey a folder; raise ValueError or FileNotFoundError, with what to do, if there is nothing to train on."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"the folder {path} does not exist: give the name of one that does")
    if not os.path.isdir(path):
        raise ValueError(f"{path} is a file: put it into a folder of its own and give that")
    every = list_files(path)
    readable = [file for file in every if unpacked_suffix(file) in SUFFIXES]
    left_out = Counter(os.path.splitext(file)[1].lower() for file in set(every) - set(readable))
    if not readable:
        held = f", only {told_endings(left_out)}" if left_out else ""
        raise ValueError(f"{shown(path)} holds no text{held}: put files of {', '.join(SUFFIXES)} there")
    glob, faults = None, tuple(_broken_tables(path, readable))
    plain = [file for file in readable if unpacked_suffix(file) in PLAIN]
    if faults:
        if not plain:
            raise ValueError(faults[0])
        endings = {unpacked_suffix(file) for file in plain}
        glob, readable = "*.[mt][dx]*" if len(endings) > 1 else f"*{endings.pop()}*", plain
    rows = _read(path, readable)
    documents = _documents(rows)
    if not documents:
        raise ValueError(f"the files in {shown(path)} are empty: put text there")
    binary = {row.file for row in documents if len(_CONTROL.findall(row.text[:4000])) > 0.1 * len(row.text[:4000])}
    if len(binary) == len({row.file for row in documents}):
        raise ValueError(f"the files in {shown(path)} have text extensions but are binary: put text there")
    # Characters and words are counted in the beginnings of all texts or, if there are many, of every n-th.
    texts = [row.text for row in documents if row.file not in binary]
    room = max(_LEAST_COUNTED, _COUNTED_CHARACTERS // len(texts))
    beginnings = [text[:room] for text in texts[:: max(1, len(texts) * room // (4 * _COUNTED_CHARACTERS))]]
    characters = Counter("".join(beginnings))
    covered = accumulate(count for _, count in characters.most_common())
    filled = [row for row in rows if row.text.strip()]
    findings, searched = _search(row.text for row in filled)
    whole = searched == sum(row.size for row in filled) and all(row.weight == 1 for row in rows)
    return Survey(
        path=path,
        files=dict(sorted(Counter(map(unpacked_suffix, readable)).items())),
        left_out=dict(sorted(left_out.items())),
        documents=max(len(documents), round(sum(row.weight for row in documents))),
        text_bytes=_weighted_bytes(documents),
        sizes=tuple(sorted(row.size for row in documents)),
        encodings=dict(Counter(row.encoding for row in documents).most_common()),
        characters=1 + sum(count < _COVERED * characters.total() for count in covered),
        words=len({word for text in beginnings for word in _PIECE.findall(text)}),
        glob=glob,
        faults=faults,
        binary=tuple(sorted(map(shown, binary))),
        copies=len(filled) - len(documents),
        empty=len(rows) - len(filled),
        secrets=findings.kinds,
        personal=findings.personal,
        sample=None if whole else (searched, _weighted_bytes(rows)),
    )


def text_bytes(path: str, suffixes: Collection[str] = SUFFIXES) -> int:
    """Return the bytes of text in a folder as `survey_folder` estimates them, without a search."""
    files = [file for file in list_files(path) if unpacked_suffix(file) in suffixes]
    return _weighted_bytes(_documents(_read(path, files)))


def told_endings(counts: Mapping[str, int]) -> str:
    """Format counts by extension, as in `3 .pdf, 1 without an ending`: the 5 most frequent first, then `others`."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    told = [f"{count:,} {ending or 'without extension'}" for ending, count in ordered[:5]]
    return ", ".join([*told, *(["others"] if ordered[5:] else [])])


def describe(survey: Survey) -> list[str]:
    """Return lines to print: what was found in a folder and what a run does about it; secrets are only counted."""
    lines = [
        f"{survey.path}: {megabytes(survey.text_bytes)} of text, {plural(survey.documents, 'document')} "
        f"({told_endings(survey.files)})"
    ]
    if survey.sample:
        searched, total = map(megabytes, survey.sample)
        lines.append(f"sample   {searched} of {total} were searched; the counts below are for this sample")
    for label, kinds, done in (
        ("secrets ", survey.secrets, "masked; `niels-gpt inspect documents --secrets` lists them"),
        ("personal", survey.personal, "kept; `on_personal: mask` in `load` masks them"),
    ):
        found = f"{sum(kinds.values()):,} ({counted(kinds)}): {done}" if kinds else "none found"
        lines.append(f"{label} {found}")
    if survey.copies:
        lines.append(f"copies   {survey.copies:,} (same text as another document): used once")
    if survey.empty:
        lines.append(f"empty    {survey.empty:,} (files or rows without text): skipped")
    if others := [f"{count:,} {name}" for name, count in survey.encodings.items() if name != "utf-8"]:
        lines.append(f"encoding {', '.join(others[:4])}: converted to UTF-8")
    if survey.left_out:
        lines.append(f"skipped  {told_endings(survey.left_out)}: no text")
    if survey.faults:
        lines.append(f"skipped  all tables, since one cannot be read: {survey.faults[0]}")
    if survey.binary:
        more = f" (and {len(survey.binary) - 1:,} more)" if survey.binary[1:] else ""
        lines.append(f"binary   {survey.binary[0]}{more} has a text extension but looks binary; exclude it")
    return list(map(visible, lines))


def megabytes(size: float) -> str:
    """Format a size in bytes as MB, or as kB if it is below 0.1 MB."""
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def _broken_tables(path: str, files: Sequence[str]) -> Iterator[str]:
    """Yield the error of each table of which one of the first 100 rows cannot be read."""
    for file in files:
        if unpacked_suffix(file) not in PLAIN:
            try:
                list(islice(iter_text(path, files=[os.path.relpath(file, path)]), 100))
            except (ValueError, OSError) as error:
                yield " ".join(str(error).split())


def _read(path: str, files: Sequence[str]) -> list[_Row]:
    """Read every file, or every n-th of a large folder, each up to `_READ_BYTES`."""
    packed = {file for file in files if file.endswith((".gz", ".zst", ".parquet"))}
    sizes = {file: os.path.getsize(file) * (_PACKED if file in packed else 1) for file in files}
    every = max(1, math.ceil(sum(sizes.values()) / _READ_BYTES))
    rows: list[_Row] = []
    for guessed in (False, True):  # sizes of compressed files are guesses, so each group has its own weight
        group = [file for file in files if (file in packed) is guessed]
        first, read = len(rows), 0
        for file in group[::every]:
            passed = 0
            for sample in iter_text(path, files=[os.path.relpath(file, path)]):
                row = _Row(file, sample.text, len(sample.text.encode("utf-8")), sample.meta["encoding"])
                rows.append(row)
                passed += row.size
                if passed > _READ_BYTES:
                    break
            read += passed if passed > _READ_BYTES else sizes[file]
        weight = sum(sizes[file] for file in group) / max(1, read)
        for row in rows[first:]:
            row.weight = weight
    return rows


def _documents(rows: Sequence[_Row]) -> list[_Row]:
    """Return the rows that have text, and of equal ones the first, as training takes them."""
    first: dict[str, _Row] = {}
    for row in rows:
        if row.text.strip():
            first.setdefault(row.text, row)
    return list(first.values())


def _weighted_bytes(rows: Sequence[_Row]) -> int:
    return round(sum(row.weight * row.size for row in rows))


def _search(texts: Iterable[str]) -> tuple[Findings, int]:
    """Search for secrets and personal details, up to `_READ_BYTES` or `_SEARCH_S`; also return the bytes searched."""
    screen, end, searched = Screen("mask", "mask"), time.process_time() + _SEARCH_S, 0
    for part in (text[at : at + _SEARCHED_AT_ONCE] for text in texts for at in range(0, len(text), _SEARCHED_AT_ONCE)):
        if searched >= _READ_BYTES or time.process_time() > end:
            break
        searched += len(part.encode("utf-8"))
        list(screen.rows([Document(id="", text=part)]))
    return screen.take(), searched
