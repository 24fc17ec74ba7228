"""Arrow's arrays, made of buffers.

`pa.array` imports pandas, to ask whether it was given a thing of pandas: a third of a second in every stage that reads
or writes rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa


def number_array(numbers: np.ndarray) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, buffer])


def text_array(texts: Sequence[str | None]) -> pa.Array:
    encoded = [(text or "").encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)])
    there = np.array([text is not None for text in texts])
    valid = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    buffers = [valid, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


def list_array(lengths: Sequence[int], items: pa.Array) -> pa.Array:
    """Lists of so many of the items each."""
    ends = np.cumsum([0, *lengths])
    return pa.ListArray.from_arrays(number_array(ends.astype(np.int32)), items)


def messages_array(chats: Sequence[Sequence[Mapping[str, str]]]) -> pa.Array:
    roles, contents = ([message[key] for chat in chats for message in chat] for key in ("role", "content"))
    messages = pa.StructArray.from_arrays([text_array(roles), text_array(contents)], names=["role", "content"])
    return list_array([len(chat) for chat in chats], messages)
