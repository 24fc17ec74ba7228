"""Survey a folder of text before anything runs: its size, encodings, secrets, personal details, copies, empty files.

All files are listed. About `_READ_BYTES` of their text are read, spread evenly over the files, and totals are estimated
from them. What the loader would stop at is found here first.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from niels_gpt.data.readers.files import list_files, shown, unpacked_suffix
from niels_gpt.data.secrets.screening import Findings, Screen, counted
from niels_gpt.data.text import SUFFIXES, iter_text
from niels_gpt.data.types import Document

PLAIN = (".txt", ".md")  # a file is a document; of the others a row is
_READ_BYTES = 20_000_000  # of text; more is sampled
_SEARCH_S = 20.0  # of CPU time: pages of telephone numbers are searched at 20 kB/s
_SEARCHED_AT_ONCE = 1 << 16  # characters between two looks at the clock
_COUNTED_CHARACTERS = 2_000_000  # of these characters and words are counted
_LEAST_COUNTED = 2000  # characters of a document
_COVERED = 0.9995  # of all characters: what a trained tokenizer spells without bytes
_PACKED = 3  # bytes of text for one of a packed file, about

_PIECE = re.compile(r"\s?\S+")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ufffd]")


@dataclass(frozen=True)
class Survey:
    """What lies in a folder. `documents` and `text_bytes` are estimates where not all of it was read."""

    path: str
    files: Mapping[str, int]  # that can be read, by ending
    left_out: Mapping[str, int]  # that are of no kind that can be read, by ending
    documents: int  # different ones
    text_bytes: int
    sizes: tuple[int, ...]  # of the documents that were looked at, in bytes, ascending
    encodings: Mapping[str, int]  # documents looked at, by encoding
    characters: int  # different ones that a tokenizer of pieces must spell
    words: int  # different ones in what was counted
    glob: str | None = None  # where only some files can be read
    faults: tuple[str, ...] = ()  # of files that it leaves out
    binary: tuple[str, ...] = ()  # files that are called text and look like none
    copies: int = 0  # documents read whose text another one has
    empty: int = 0  # files and rows read that hold no text
    secrets: Mapping[str, int] = field(default_factory=dict)  # found in the text searched, by kind
    personal: Mapping[str, int] = field(default_factory=dict)  # e-mail addresses, telephone numbers, national ids
    sample: tuple[int, int] | None = None  # (bytes searched, bytes of all text) where not all of it was searched

    @property
    def longest(self) -> int:
        return self.sizes[-1]


@dataclass(frozen=True)
class _Look:
    """A document that was read."""

    file: str
    size: int
    encoding: str
    text: str  # its beginning


def survey_folder(path: str) -> Survey:
    """Survey a folder. Raise ValueError or FileNotFoundError, with what to do, where there is nothing to train on."""
    _refuse_what_is_no_folder(path)
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
        glob, readable = glob_of({unpacked_suffix(file) for file in plain}), plain
    reading = _read(path, readable)
    looks = reading.looks
    if not looks:
        raise ValueError(f"the files in {shown(path)} are empty: put text there")
    binary = {look.file for look in looks if _is_binary(look.text)}
    if len(binary) == len({look.file for look in looks}):
        raise ValueError(f"the files in {shown(path)} are called text and hold none (binary): put text there")
    beginnings = _beginnings(look.text for look in looks if look.file not in binary)
    return Survey(
        path=path,
        files=dict(sorted(Counter(map(unpacked_suffix, readable)).items())),
        left_out=dict(sorted(left_out.items())),
        documents=max(len(looks), round(reading.documents)),
        text_bytes=round(reading.text_bytes),
        sizes=tuple(sorted(look.size for look in looks)),
        encodings=dict(Counter(look.encoding for look in looks).most_common()),
        characters=_covering(Counter("".join(beginnings))),
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


def glob_of(suffixes: Iterable[str]) -> str:
    """A pattern for files of text alone, packed ones with them."""
    ending = "".join(sorted(suffixes))
    return f"*{ending}*" if ending in PLAIN else "*.[mt][dx]*"


def told_endings(counts: Mapping[str, int]) -> str:
    """`3 .pdf, 1 without an ending`, the most first and no more than five."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    told = [f"{count:,} {ending or 'without an ending'}" for ending, count in ordered[:5]]
    return ", ".join([*told, *(["others"] if ordered[5:] else [])])


def describe(survey: Survey) -> list[str]:
    """Return lines to print: what was found in a folder, and what a run does about each. Secrets are only counted."""
    lines = [
        f"{survey.path}: {megabytes(survey.text_bytes)} of text, {survey.documents:,} "
        f"document{'s' if survey.documents > 1 else ''} ({told_endings(survey.files)})"
    ]
    if survey.sample:
        searched, total = map(megabytes, survey.sample)
        lines.append(f"sample   {searched} of {total} were searched; the counts below are for this sample")
    for label, kinds, done in (
        ("secrets ", survey.secrets, "masked; `niels-gpt inspect secrets` lists them"),
        ("personal", survey.personal, "kept; `on_personal: mask` in `load` masks them"),
    ):
        found = f"{sum(kinds.values()):,} ({counted(kinds)}): {done}" if kinds else "none found"
        lines.append(f"{label} {found}")
    if survey.copies:
        lines.append(f"copies   {survey.copies:,} (same text as another document): used once")
    if survey.empty:
        lines.append(f"empty    {survey.empty:,} (files or rows without text): skipped")
    others = [f"{count:,} {name}" for name, count in survey.encodings.items() if name != "utf-8"]
    if others:
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
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def printable(line: str) -> str:
    """Names of files may hold anything."""
    return "".join(character if character.isprintable() else "?" for character in line)


def _refuse_what_is_no_folder(path: str) -> None:
    if not path.isprintable():
        raise ValueError(f"the name {shown(path)!r} has characters that cannot be printed: rename the folder")
    if not os.path.exists(path):
        raise FileNotFoundError(f"the folder {path} does not exist: give the name of one that does")
    if not os.path.isdir(path):
        raise ValueError(f"{path} is a file: put it into a folder of its own and give that")


def _broken_tables(path: str, files: Sequence[str]) -> Iterator[str]:
    """Why rows of a table could not be read, a sentence each: from its first ones."""
    for file in files:
        if unpacked_suffix(file) not in PLAIN:
            try:
                for _ in islice(iter_text(path, files=[os.path.relpath(file, path)]), 100):
                    pass
            except (ValueError, OSError) as error:
                yield " ".join(str(error).split())


@dataclass
class _Reading:
    """What was read of a folder; `text_bytes` and `documents` are estimates for all of it, without copies."""

    looks: list[_Look] = field(default_factory=list)
    text_bytes: float = 0.0
    documents: float = 0.0
    copies: int = 0
    empty: int = 0
    findings: Findings = field(default_factory=Findings)
    sample: tuple[int, int] | None = None


class _Search:
    """Search texts for secrets and personal details, as far as `_READ_BYTES` and `_SEARCH_S` allow."""

    def __init__(self) -> None:
        self._screen, self._end = Screen("mask", "mask"), time.process_time() + _SEARCH_S
        self.searched = 0  # bytes
        self.whole = True

    def add(self, text: str) -> None:
        for start in range(0, len(text), _SEARCHED_AT_ONCE):
            if self.searched >= _READ_BYTES or time.process_time() > self._end:
                self.whole = False
                return
            part = text[start : start + _SEARCHED_AT_ONCE]
            self.searched += len(part.encode("utf-8"))
            list(self._screen.rows([Document(id="", text=part)]))

    def take(self) -> Findings:
        return self._screen.take()


def _read(path: str, files: Sequence[str]) -> _Reading:
    """Read every file, or of a large folder every n-th. Of equal texts one counts, as one is trained on."""
    sizes = {file: os.path.getsize(file) * (_PACKED if _is_packed(file) else 1) for file in files}
    every = max(1, math.ceil(sum(sizes.values()) / _READ_BYTES))
    reading, search = _Reading(), _Search()
    known: set[bytes] = set()
    whole, total = True, 0.0
    for packed in (False, True):  # how much a packed file holds is a guess: each group is scaled by itself
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
    reading.findings = search.take()
    if not (whole and search.whole):
        reading.sample = search.searched, round(total)
    return reading


def _is_packed(file: str) -> bool:
    return file.endswith((".gz", ".zst", ".parquet"))


def _is_binary(text: str) -> bool:
    start = text[:4000]
    return len(_CONTROL.findall(start)) > 0.1 * len(start)


def _beginnings(texts: Iterable[str]) -> list[str]:
    """Return the beginnings of texts, about `_COUNTED_CHARACTERS` together."""
    every = list(texts)
    room = max(_LEAST_COUNTED, _COUNTED_CHARACTERS // max(1, len(every)))
    return [text[:room] for text in every[:: max(1, len(every) * room // (4 * _COUNTED_CHARACTERS))]]


def _covering(counts: Counter[str]) -> int:
    """How many different characters, the most frequent first, make up nearly all of a text."""
    left = _COVERED * sum(counts.values())
    for number, (_, count) in enumerate(counts.most_common(), start=1):
        left -= count
        if left <= 0:
            return number
    return len(counts)
