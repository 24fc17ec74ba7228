"""Load stage: read a source in slices, in parallel where its kind allows it, and write parquet parts."""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from typing import Any

from niels_gpt.data.corpus.parts import CHAT_SCHEMA, DOCUMENT_SCHEMA, Part, write_rows
from niels_gpt.data.kinds import source_kinds
from niels_gpt.data.readers.files import list_files
from niels_gpt.data.secrets import Findings, OnPersonal, OnSecret, Screen
from niels_gpt.data.types import Chat, Document, Request, up_to
from niels_gpt.files.checks import sha256_file
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import Engine, Record, Worker, make_parts, read_record, write_record


@dataclass(frozen=True)
class Slice:
    """Unit of parallel loading: a whole source, or some of its files.

    A slice is written as one part, or as several if it has more than `text_bytes` bytes of text.
    """

    kind: str
    settings: Any
    request: Request
    store: Store
    text_bytes: int
    on_secret: OnSecret = "keep"
    on_personal: OnPersonal = "keep"
    number: int = 0
    of: int = 1

    @property
    def name(self) -> str:
        return f"slice-{self.number:05d}"

    def part(self, piece: int) -> str:
        """Return the name of part number `piece` of this slice; names sort in slice order, then part order."""
        if self.of == 1:
            return f"part-{piece:05d}"
        return f"part-{self.number:05d}" + (f"-{piece:03d}" if piece else "")

    def rows(self) -> Iterator[Document] | Iterator[Chat]:
        """Return the source's rows without blank documents, which would add only an end-of-text token."""
        kind = source_kinds()[self.kind]
        rows = kind.read(self.settings, self.request)
        return rows if kind.holds_chats else (row for row in rows if row.text.strip())


def cut_source(whole: Slice) -> list[Slice]:
    """Return the slices of a source, as its kind divides it; a single slice if the kind cannot divide it."""
    requests = source_kinds()[whole.kind].requests(whole.settings, whole.request, whole.text_bytes)
    return [replace(whole, request=part, number=number, of=len(requests)) for number, part in enumerate(requests)]


def load_parts(
    engine: Engine, slices: list[Slice], *, say: Callable[[str], object], tick: Callable[[int], object]
) -> tuple[list[Part], Findings]:
    """Load the slices that have no done-record yet; return the parts of all slices and the secrets found."""
    records = make_parts(engine, load_slice, slices, store=slices[0].store, say=say, tick=tick)
    parts = [Part(**part) for record in records for part in record["files"]]
    return parts, sum(map(Findings.of_record, records), Findings())


def load_slice(item: Slice, worker: Worker) -> Record:
    """Write a slice as parts of about `text_bytes` bytes of text and return its record.

    An interrupted slice resumes after its last finished part: the order of rows is deterministic, so rows already
    written are skipped. A part's record counts the secrets in its rows and in rows dropped before each of them.
    """
    schema = CHAT_SCHEMA if source_kinds()[item.kind].holds_chats else DOCUMENT_SCHEMA
    screen, found = Screen(item.on_secret, item.on_personal), Findings()
    parts: list[Part] = []
    while (record := read_record(item.store, item.part(len(parts)))) is not None:
        parts += [Part(**part) for part in record["files"]]
        found += Findings.of_record(record)
    rows: Iterator[Any] = screen.rows(item.rows())
    for _ in islice(rows, sum(part.rows for part in parts)):
        screen.take()  # discarded: the records of the finished parts already count these findings
    for first in rows:  # a part is opened only when it has a row
        name = item.part(len(parts))
        file = f"{name}.parquet"
        with item.store.writing(file) as path:
            size = write_rows(path, schema, up_to(item.text_bytes, chain([first], rows)), tick=worker.tick)
            part = Part(file, *size, path.stat().st_size, sha256_file(path))
        here = screen.take()
        write_record(item.store, name, {"files": [asdict(part)], **here.record()})
        parts.append(part)
        found += here
    return {"files": [asdict(part) for part in parts], **(found + screen.dropped).record()}


def digest_inputs(item: Slice, worker: Worker) -> str:
    """Return a string identifying the slice's input: a SHA-256 of its files, or hub id, commit and file names."""
    request = item.request
    if not os.path.exists(request.path):
        return f"{request.path} {request.revision} {request.files}"
    if os.path.isfile(request.path):
        return sha256_file(request.path)
    # `files` of a local dataset are absolute real paths. Hash relative ones, so that every clone gets the same digest.
    root = os.path.realpath(request.path)
    digest = hashlib.sha256()
    for name in request.files or list_files(root):
        file = os.path.join(root, name)
        digest.update(f"{os.path.relpath(file, root)} {sha256_file(file)}\n".encode())
        worker.tick(os.path.getsize(file))
    return digest.hexdigest()
