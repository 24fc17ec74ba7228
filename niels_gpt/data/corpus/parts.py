"""Documents and chats on disk: parquet files of bounded size (parts), and the manifest that lists them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from niels_gpt.data.corpus.sketch import sketch_texts
from niels_gpt.data.types import Chat, Document, grouped
from niels_gpt.files.checks import Damaged, described_by, read_meta, sha256_file
from niels_gpt.files.store import Store

# Arrow arrays are built without `pa.array`: it imports pandas, only to check whether its argument is a pandas object,
# which costs 0.3 s in every stage that reads or writes rows.


def number_array(numbers: np.ndarray) -> pa.Array:
    """Return a 1-D numpy array as an Arrow array of the same dtype."""
    buffer = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, buffer])


def text_array(texts: Sequence[str | None]) -> pa.Array:
    """Return an Arrow string array; None becomes null."""
    builder = pa.lib.StringBuilder()
    builder.append_values(texts)
    return builder.finish()


def list_array(lengths: Sequence[int], items: pa.Array) -> pa.Array:
    """Return an Arrow list array that divides `items` into consecutive lists of these lengths."""
    ends = np.cumsum([0, *lengths])
    return pa.ListArray.from_arrays(number_array(ends.astype(np.int32)), items)


def messages_array(chats: Sequence[Sequence[Mapping[str, str]]]) -> pa.Array:
    """Return an Arrow array with one list of {role, content} structs per chat."""
    roles, contents = ([message[key] for chat in chats for message in chat] for key in ("role", "content"))
    messages = pa.StructArray.from_arrays([text_array(roles), text_array(contents)], names=["role", "content"])
    return list_array([len(chat) for chat in chats], messages)


_S, _HASH = pa.string(), pa.uint64()
# The sketch of each row (data/corpus/sketch.py), for finding duplicates without reading the text again.
_SKETCH = [("text_hash", _HASH), ("words_hash", _HASH), ("scale", pa.uint8()), ("hashes", pa.list_(_HASH))]
_MESSAGES = pa.list_(pa.struct([("role", _S), ("content", _S)]))
DOCUMENT_SCHEMA = pa.schema([("id", _S), ("text", _S), ("split", _S), *_SKETCH])
CHAT_SCHEMA = pa.schema([("id", _S), ("messages", _MESSAGES), ("split", _S), ("group", _S), *_SKETCH])
_COLUMNS: dict[str, Callable[[list[Any]], pa.Array]] = {"messages": messages_array}  # the others are text
# No dictionary encoding: hashing whole texts to find repeats took more than half of the writing time. Page checksums
# notice a bit that flips between the check of a part's SHA-256 and its reading.
PARQUET: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True}
# A reader holds one row group in memory. A group is closed when it reaches either bound.
_GROUP_BYTES = 4 << 20
_GROUP_ROWS = 4096


def write_rows(
    path: Path, schema: pa.Schema, rows: Iterable[Document | Chat], *, tick: Callable[[int], object] = bool
) -> tuple[int, int]:
    """Write rows to a parquet file, byte for byte reproducibly; return (rows, UTF-8 bytes of their text).

    `tick` is called with the text bytes of each row.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    names = schema.names[: -len(_SKETCH)]
    count = total_bytes = 0

    def counted(row: Document | Chat) -> int:
        tick(size := row.bytes())
        return size

    with pq.ParquetWriter(path, schema, **PARQUET) as writer:
        for group, size in grouped(rows, counted, most=_GROUP_BYTES, count=_GROUP_ROWS):
            arrays = [_COLUMNS.get(name, text_array)([getattr(row, name) for row in group]) for name in names]
            writer.write_table(pa.Table.from_arrays([*arrays, *_sketch_columns(group)], schema=schema))
            count, total_bytes = count + len(group), total_bytes + size
    return count, total_bytes


def _sketch_columns(rows: Sequence[Document | Chat]) -> list[pa.Array]:
    found = sketch_texts([row.text if isinstance(row, Document) else transcript(row.messages) for row in rows])
    hashes = list_array(np.diff(found.starts).tolist(), number_array(found.hashes))
    return [*map(number_array, (found.text, found.words, found.scale)), hashes]


def transcript(messages: Sequence[Mapping[str, str]]) -> str:
    """Render a chat as text, one "role: content" per message, so that it matches the same dialogue as a document."""
    return "".join(f"{message['role']}: {message['content']}\n" for message in messages)


def read_column(path: Path, name: str) -> list[Any]:
    """Return a short column (`split`, `group` or `id`) of all rows."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        values: list[Any] = file.read(columns=[name])[name].to_pylist()
    return values


def read_keys(path: Path) -> list[str]:
    """Return the key by which each row is split: a chat's group if it has one, else the row's id."""
    ids = read_column(path, "id")
    if "group" not in pq.read_schema(path).names:
        return ids
    return [group or own for group, own in zip(read_column(path, "group"), ids, strict=True)]


def read_wording(path: Path, rows: np.ndarray) -> Iterator[list[str]]:
    """Yield the texts of the given rows (ascending), with chats rendered as transcripts, one list per row group."""
    for batch in read_contents(path, rows):
        yield [content if isinstance(content, str) else transcript(content) for content in batch]


def read_contents(path: Path, rows: np.ndarray) -> Iterator[list[Any]]:
    """Yield the texts, or the messages of chats, of the given rows (ascending), one list per row group of a few MB."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        column = "messages" if "messages" in file.schema_arrow.names else "text"
        first = 0
        for group in range(file.num_row_groups):
            last = first + file.metadata.row_group(group).num_rows
            lo, hi = np.searchsorted(rows, (first, last))
            if hi > lo:
                values = file.read_row_group(group, columns=[column])[column]
                yield values.take(number_array(rows[lo:hi] - first)).to_pylist()
            first = last


# Later stages process one part at a time, so a corpus may exceed the memory of a machine, and parts can be spread over
# several machines.

MANIFEST = "manifest.json"  # in a source's folder; the parts are beside it or in a store


@dataclass(frozen=True)
class Part:
    """Parquet file of documents or chats; `text_bytes` is the UTF-8 size of its text, `bytes` the size of the file."""

    file: str
    rows: int
    text_bytes: int
    bytes: int
    sha256: str

    @property
    def name(self) -> str:
        return Path(self.file).stem


@dataclass(frozen=True)
class Texts:
    """Loaded source: its parts in order, the store that holds them, and the other entries of its manifest (`facts`).

    `digest`, the SHA-256 of the manifest, identifies the texts, because the manifest lists the SHA-256 of each part.
    """

    store: Store
    parts: tuple[Part, ...]
    facts: Mapping[str, Any]
    digest: str
    at: str | None = None  # where the parts are in the store; None if they are beside the manifest

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def text_bytes(self) -> int:
        return sum(part.text_bytes for part in self.parts)

    def paths(self) -> Iterator[Path]:
        for part in self.parts:
            with reading_part(self.store, part) as path:
                yield path

    def column(self, name: str) -> list[Any]:
        return [value for path in self.paths() for value in read_column(path, name)]

    def keys(self) -> Iterator[str]:
        for path in self.paths():
            yield from read_keys(path)

    def by_part(self, rows: np.ndarray) -> Iterator[tuple[Path, np.ndarray]]:
        """Yield (local path, row numbers within it) of each part that has some of `rows` (ascending)."""
        first = 0
        for part in self.parts:
            own = rows[slice(*np.searchsorted(rows, (first, first + part.rows)))] - first
            first += part.rows
            if len(own):
                with reading_part(self.store, part) as path:
                    yield path, own


def open_texts(folder: Path, *, stored: Store | None = None) -> Texts:
    """Read the manifest in `folder`; its parts are in the same folder, or in `stored` if the manifest says so."""
    path = folder / MANIFEST
    facts = read_meta(path, required=["name", "parts"])
    with described_by(path):
        parts = tuple(Part(**part) for part in facts.pop("parts"))
        at = facts.pop("at", None)
    if at is not None and stored is None:
        raise ValueError(f"{path} says that its parts lie in a store, under {at}: name the store in runtime.stores")
    store = Store(str(folder)) if at is None or stored is None else stored.below(at)
    return Texts(store, parts, facts, digest=sha256_file(path), at=at)


def manifest_of(parts: Sequence[Part], facts: Mapping[str, Any], *, at: str | None) -> dict[str, Any]:
    """Return the content of a manifest; `at` is the parts' path in the store, None if they are beside the manifest."""
    return {
        **facts,
        **({} if at is None else {"at": at}),
        "rows": sum(part.rows for part in parts),
        "bytes": sum(part.text_bytes for part in parts),
        "parts": [asdict(part) for part in parts],
    }


def first_documents(texts: Texts, n: int) -> Iterator[tuple[str, str]]:
    """Yield (id, text) of the first n documents."""
    for path, rows in texts.by_part(np.arange(min(n, texts.rows))):
        found = (text for batch in read_contents(path, rows) for text in batch)
        yield from zip(read_column(path, "id"), found, strict=False)


@contextmanager
def reading_part(store: Store, part: Part) -> Iterator[Path]:
    """Yield a local path to the part, downloaded if necessary; raise `Damaged` if its SHA-256 is not the manifest's."""
    if store.size(part.file) is None:
        raise Damaged(store.place(part.file), "is missing: make it again")
    with store.reading(part.file) as path:
        if sha256_file(path) != part.sha256:
            raise Damaged(store.place(part.file), "is not what its manifest says (changed): make it again")
        yield path
