"""A look at a folder of text before anything is made of it: how much there is, of what kind, in which languages.

All files are listed; of their text so much is read as a few seconds allow, spread evenly, and the rest is reckoned from
it. What the loader would stop at is found here first.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from niels_gpt.data.readers.files import list_files, shown, unpacked_suffix
from niels_gpt.data.text import SUFFIXES, iter_text

PLAIN = (".txt", ".md")  # a file is a document; of the others a row is
_READ_BYTES = 48 << 20  # text that is looked at, at the most
_COUNTED_CHARACTERS = 2_000_000  # of these characters and words are counted
_LEAST_COUNTED = 2000  # characters of a document
_COVERED = 0.9995  # of all characters: what a trained tokenizer spells without bytes
_PACKED = 3  # bytes of text for one of a packed file, about
_SMALLEST_SHARE = 0.05  # of a language that is named
_PLURALS = {"s": "es"}  # by the last letter; else s

# Words that are frequent in one language and rare in the others.
_COMMON = {
    "English": "the and of to is that with for was this are have",
    "German": "und der die das nicht ist ein ich mit auf auch sich",
    "French": "les des est une dans que pour qui sur pas avec vous",
    "Spanish": "los las que una por con para del como pero más está",
    "Portuguese": "não uma que para com dos mas mais você isso são pelo",
    "Italian": "che non una per sono della con gli anche più nel questo",
    "Dutch": "het een van niet dat zijn voor maar ook naar wordt bij",
    "Danish": "og det som til af på ikke med har jeg den blev",
    "Swedish": "och det som att på är inte med för har jag ett",
}
_WORDS_OF = {language: frozenset(words.split()) for language, words in _COMMON.items()}
_SCRIPTS = (
    ("Japanese", re.compile(r"[\u3040-\u30ff]")),
    ("Chinese", re.compile(r"[\u4e00-\u9fff]")),
    ("Korean", re.compile(r"[\uac00-\ud7af]")),
    ("Russian or another in Cyrillic", re.compile(r"[\u0400-\u04ff]")),
    ("Greek", re.compile(r"[\u0370-\u03ff]")),
    ("Arabic or another in its letters", re.compile(r"[\u0600-\u06ff]")),
    ("Hindi or another in Devanagari", re.compile(r"[\u0900-\u097f]")),
)
_WORD = re.compile(r"\w+")
_PIECE = re.compile(r"\s?\S+")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ufffd]")


@dataclass(frozen=True)
class Survey:
    """What lies in a folder. `documents` and `text_bytes` are reckoned where not all of it was read."""

    path: str
    files: Mapping[str, int]  # that can be read, by ending
    left_out: Mapping[str, int]  # that are of no kind that can be read, by ending
    documents: int  # different ones
    text_bytes: int
    sizes: tuple[int, ...]  # of the documents that were looked at, in bytes, ascending
    encodings: Mapping[str, int]  # documents looked at, by encoding
    languages: Mapping[str, float]  # share of the text looked at, the most first; "" where none shows
    characters: int  # different ones that a tokenizer of pieces must spell
    words: int  # different ones in what was counted
    glob: str | None = None  # where only some files can be read
    faults: tuple[str, ...] = ()  # of files that it leaves out
    binary: tuple[str, ...] = ()  # files that are called text and look like none
    personal: Mapping[str, int] = field(default_factory=dict)  # personal details by kind, scaled up to all of the text

    @property
    def longest(self) -> int:
        return self.sizes[-1]

    def english(self) -> bool:
        return next(iter(self.languages), "") == "English"


@dataclass(frozen=True)
class _Look:
    """A document that was read."""

    file: str
    size: int
    encoding: str
    text: str  # its beginning


def survey_folder(path: str) -> Survey:
    """A ValueError or FileNotFoundError, in a sentence with what to do, where there is nothing to train on."""
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
    looks, text_bytes, documents = _read(path, readable)
    if not looks:
        raise ValueError(f"the files in {shown(path)} are empty: put text there")
    binary = {look.file for look in looks if _is_binary(look.text)}
    if len(binary) == len({look.file for look in looks}):
        raise ValueError(f"the files in {shown(path)} are called text and hold none (binary): put text there")
    counted = _counted(look.text for look in looks if look.file not in binary)
    return Survey(
        path=path,
        files=dict(sorted(Counter(map(unpacked_suffix, readable)).items())),
        left_out=dict(sorted(left_out.items())),
        documents=documents,
        text_bytes=text_bytes,
        sizes=tuple(sorted(look.size for look in looks)),
        encodings=dict(Counter(look.encoding for look in looks).most_common()),
        languages=languages(counted),
        characters=_covering(Counter("".join(counted))),
        words=len({word for text in counted for word in _PIECE.findall(text)}),
        glob=glob,
        faults=faults,
        binary=tuple(sorted(map(shown, binary))),
        personal=_personal(counted, text_bytes),
    )


def _personal(texts: Sequence[str], text_bytes: int) -> dict[str, int]:
    """Return e-mail addresses, telephone numbers and national ids by kind, estimated where not all text was read."""
    from niels_gpt.data.secrets.personal import find_personal

    found = Counter(detail.kind for text in texts for detail in find_personal(text))
    scale = max(1.0, text_bytes / max(1, sum(len(text.encode("utf-8")) for text in texts)))
    return {kind: round(count * scale) for kind, count in sorted(found.items())}


def languages(texts: Sequence[str]) -> dict[str, float]:
    """Roughly: share of the texts' characters by language, the most first; those of a twentieth or more."""
    sizes: Counter[str] = Counter()
    for text in texts:
        sizes[language_of(text)] += len(text)
    total = sum(sizes.values()) or 1
    return {name: size / total for name, size in sizes.most_common() if size >= _SMALLEST_SHARE * total}


def language_of(text: str) -> str:
    """By its script, or by its most frequent words; "" where neither shows."""
    letters = sum(map(str.isalpha, text)) or 1
    for name, script in _SCRIPTS:
        if len(script.findall(text)) > (0.1 if name == "Japanese" else 0.3) * letters:
            return name
    words = [word.lower() for word in _WORD.findall(text)]
    counts = {name: sum(word in common for word in words) for name, common in _WORDS_OF.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] >= max(2, 0.03 * len(words)) else ""


def glob_of(suffixes: Iterable[str]) -> str:
    """A pattern for files of text alone, packed ones with them."""
    ending = "".join(sorted(suffixes))
    return f"*{ending}*" if ending in PLAIN else "*.[mt][dx]*"


def told_endings(counts: Mapping[str, int]) -> str:
    """`3 .pdf, 1 without an ending`, the most first and no more than five."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    told = [f"{count:,} {ending or 'without an ending'}" for ending, count in ordered[:5]]
    return ", ".join([*told, *(["others"] if ordered[5:] else [])])


def told(survey: Survey) -> list[str]:
    """What was found in a folder, a line a thing."""
    spoken = [f"{name or 'no language that shows'} {share:.0%}" for name, share in survey.languages.items()]
    lines = [
        f"{survey.path}: {megabytes(survey.text_bytes)} of text, {survey.documents:,} "
        f"document{'s' if survey.documents > 1 else ''} "
        f"({told_endings(survey.files)}); {', '.join(spoken) or 'languages unknown'}"
    ]
    others = {name: count for name, count in survey.encodings.items() if name != "utf-8"}
    if others:
        named = ", ".join(f"{count:,} {name}" for name, count in list(others.items())[:4])
        lines.append(f"not UTF-8, and read all the same: {named}")
    if survey.personal:
        details = ", ".join(
            f"{count:,} {kind}{'' if count == 1 else _PLURALS.get(kind[-1], 's')}"
            for kind, count in survey.personal.items()
        )
        lines.append(f"personal details: about {details}; they are kept, `on_personal: mask` in `load` replaces them")
    if survey.left_out:
        lines.append(f"left out, for they are no text: {told_endings(survey.left_out)}")
    if survey.faults:
        lines.append(f"left out, with all tables: {survey.faults[0]}")
    if survey.binary:
        more = f" and {len(survey.binary) - 1:,} more" if survey.binary[1:] else ""
        lines.append(f"called text, and looks like none: {survey.binary[0]}{more}; better take it out")
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


def _read(path: str, files: Sequence[str]) -> tuple[list[_Look], int, int]:
    """(documents that were looked at, bytes of all text, how many documents), the last two reckoned. Of equal texts
    one counts, as one is trained on."""
    sizes = {file: os.path.getsize(file) for file in files}
    every = max(1, round(sum(sizes.values()) / _READ_BYTES))
    looks: list[_Look] = []
    known: set[bytes] = set()
    text_bytes = documents = 0.0
    for packed in (False, True):
        group = [file for file in files if _is_packed(file) is packed]
        read, first = 0.0, len(looks)
        for file in group[::every]:
            passed, whole = 0, True
            for sample in iter_text(path, files=[os.path.relpath(file, path)]):
                text = sample.text.encode("utf-8")
                passed, digest = passed + len(text), hashlib.blake2b(text, digest_size=16).digest()
                if sample.text.strip() and digest not in known:
                    known.add(digest)
                    looks.append(_Look(file, len(text), sample.meta["encoding"], sample.text[:_COUNTED_CHARACTERS]))
                if passed > _READ_BYTES:
                    whole = False
                    break
            read += sizes[file] if whole else passed / (_PACKED if packed else 1)
        scale = sum(sizes[file] for file in group) / read if read else 0.0
        text_bytes += scale * sum(look.size for look in looks[first:])
        documents += scale * (len(looks) - first)
    return looks, round(text_bytes), max(len(looks), round(documents))


def _is_packed(file: str) -> bool:
    return file.endswith((".gz", ".zst", ".parquet"))


def _is_binary(text: str) -> bool:
    start = text[:4000]
    return len(_CONTROL.findall(start)) > 0.1 * len(start)


def _counted(texts: Iterable[str]) -> list[str]:
    """The beginnings of texts, of each the same share, so long that they are about as much as can be counted."""
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
