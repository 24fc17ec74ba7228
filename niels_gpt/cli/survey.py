"""Survey a folder of text before a run: size, encodings, secrets, personal details, copies, empty files.

All files are listed. About `_READ_BYTES` of their text are read, spread evenly over the files, and totals are estimated
from them. Errors that would stop the loader are found here first.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice

from niels_gpt.data.readers.files import list_files, shown, unpacked_suffix
from niels_gpt.data.secrets import Findings, Screen, counted
from niels_gpt.data.text import SUFFIXES, iter_text
from niels_gpt.data.types import Document
from niels_gpt.files.messages import plural

PLAIN = (".txt", ".md")  # one document per file; in all other formats, one per row
_READ_BYTES = 20_000_000  # of text; larger folders are sampled
_SEARCH_S = 20.0  # CPU seconds: pages of telephone numbers are searched at only 20 kB/s
_SEARCHED_AT_ONCE = 1 << 16  # characters between two checks of the CPU time
_COUNTED_CHARACTERS = 2_000_000  # characters of text in which distinct characters and words are counted
_LEAST_COUNTED = 2000  # characters per document
_COVERED = 0.9995  # share of characters that a trained tokenizer spells without byte fallback
_HELD_OUT, _LEAST_HELD_OUT_BYTES = 0.1, 1e6  # a tenth; of large sources about 1 MB, enough to score
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
        """Return the fraction of the text to hold out: a tenth, and of large folders about 1 MB."""
        return float(f"{max(0.001, min(_HELD_OUT, _LEAST_HELD_OUT_BYTES / self.text_bytes)):.2g}")

    @property
    def trained_bytes(self) -> float:
        return self.text_bytes * (1 - self.held_out)


@dataclass(frozen=True)
class _Look:
    """A document that was read."""

    file: str
    size: int
    encoding: str
    text: str  # its beginning


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
    reading = _read(path, readable, _Search())
    looks = reading.looks
    if not looks:
        raise ValueError(f"the files in {shown(path)} are empty: put text there")
    binary = {look.file for look in looks if len(_CONTROL.findall(look.text[:4000])) > 0.1 * len(look.text[:4000])}
    if len(binary) == len({look.file for look in looks}):
        raise ValueError(f"the files in {shown(path)} have text extensions but are binary: put text there")
    # Characters and words are counted in the beginnings of all texts or, if there are many, of every n-th.
    texts = [look.text for look in looks if look.file not in binary]
    room = max(_LEAST_COUNTED, _COUNTED_CHARACTERS // len(texts))
    beginnings = [text[:room] for text in texts[:: max(1, len(texts) * room // (4 * _COUNTED_CHARACTERS))]]
    characters = Counter("".join(beginnings))
    covered = accumulate(count for _, count in characters.most_common())
    return Survey(
        path=path,
        files=dict(sorted(Counter(map(unpacked_suffix, readable)).items())),
        left_out=dict(sorted(left_out.items())),
        documents=max(len(looks), round(reading.documents)),
        text_bytes=round(reading.text_bytes),
        sizes=tuple(sorted(look.size for look in looks)),
        encodings=dict(Counter(look.encoding for look in looks).most_common()),
        characters=1 + sum(count < _COVERED * characters.total() for count in covered),
        words=len({word for text in beginnings for word in _PIECE.findall(text)}),
        glob=glob,
        faults=faults,
        binary=tuple(sorted(map(shown, binary))),
        copies=reading.copies,
        empty=reading.empty,
        secrets=reading.findings.kinds,
        personal=reading.findings.personal,
        sample=reading.sample,
    )


def text_bytes(path: str, suffixes: Collection[str] = SUFFIXES) -> int:
    """Return the bytes of text in a folder as `survey_folder` estimates them, without a search."""
    return round(_read(path, [file for file in list_files(path) if unpacked_suffix(file) in suffixes], None).text_bytes)


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
    return [printable(line) for line in lines]


def megabytes(size: float) -> str:
    """Format a size in bytes as MB, or as kB if it is below 0.1 MB."""
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def printable(line: str) -> str:
    """Replace non-printable characters, which file names may contain, by "?"."""
    return "".join(character if character.isprintable() else "?" for character in line)


def _broken_tables(path: str, files: Sequence[str]) -> Iterator[str]:
    """Yield the error of each table of which one of the first 100 rows cannot be read."""
    for file in files:
        if unpacked_suffix(file) not in PLAIN:
            try:
                for _ in islice(iter_text(path, files=[os.path.relpath(file, path)]), 100):
                    pass
            except (ValueError, OSError) as error:
                yield " ".join(str(error).split())


@dataclass
class _Scan:
    """Counts of what was read of a folder; `text_bytes` and `documents` are estimates for all of it, without copies."""

    looks: list[_Look] = field(default_factory=list)
    text_bytes: float = 0.0
    documents: float = 0.0
    copies: int = 0
    empty: int = 0
    findings: Findings = field(default_factory=Findings)
    sample: tuple[int, int] | None = None


class _Search:
    """Search for secrets and personal details that stops after `_READ_BYTES` of text or `_SEARCH_S` of CPU time."""

    def __init__(self) -> None:
        self.screen, self._end = Screen("mask", "mask"), time.process_time() + _SEARCH_S
        self.searched = 0  # bytes
        self.whole = True

    def add(self, text: str) -> None:
        """Search a text in parts; past a limit, stop and set `whole` to False."""
        for start in range(0, len(text), _SEARCHED_AT_ONCE):
            if self.searched >= _READ_BYTES or time.process_time() > self._end:
                self.whole = False
                return
            part = text[start : start + _SEARCHED_AT_ONCE]
            self.searched += len(part.encode("utf-8"))
            list(self.screen.rows([Document(id="", text=part)]))


def _read(path: str, files: Sequence[str], search: _Search | None) -> _Scan:
    """Read every file, or every n-th of a large folder; equal texts count once, as in training."""
    sizes = {file: os.path.getsize(file) * (_PACKED if _is_packed(file) else 1) for file in files}
    every = max(1, math.ceil(sum(sizes.values()) / _READ_BYTES))
    reading = _Scan()
    known: set[bytes] = set()
    whole, total = True, 0.0
    for packed in (False, True):  # sizes of compressed files are guesses, so each group has its own scale
        group = [file for file in files if _is_packed(file) is packed]
        read, text_read, first = 0, 0, len(reading.looks)
        whole &= len(group[::every]) == len(group)
        for file in group[::every]:
            passed = 0
            for sample in iter_text(path, files=[os.path.relpath(file, path)]):
                text = sample.text.encode("utf-8")
                passed, digest = passed + len(text), hashlib.blake2b(text, digest_size=16).digest()
                if not sample.text.strip():
                    reading.empty += 1
                    continue
                if search:
                    search.add(sample.text)
                if digest in known:
                    reading.copies += 1
                else:
                    known.add(digest)
                    look = _Look(file, len(text), sample.meta["encoding"], sample.text[:_COUNTED_CHARACTERS])
                    reading.looks.append(look)
                if passed > _READ_BYTES:
                    whole = False
                    read += passed
                    break
            else:
                read += sizes[file]
            text_read += passed
        scale = sum(sizes[file] for file in group) / read if read else 0.0
        reading.text_bytes += scale * sum(look.size for look in reading.looks[first:])
        reading.documents += scale * (len(reading.looks) - first)
        total += scale * text_read
    if search:
        reading.findings = search.screen.take()
        reading.sample = None if whole and search.whole else (search.searched, round(total))
    return reading


def _is_packed(file: str) -> bool:
    return file.endswith((".gz", ".zst", ".parquet"))
