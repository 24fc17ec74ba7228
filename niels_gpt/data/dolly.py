"""databricks-dolly-15k: instructions and answers written by people. A chat is one question and one answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from niels_gpt.data.fields import check_texts
from niels_gpt.data.hub import load_dataset, load_rows
from niels_gpt.data.types import ChatMessage, ChatSample

KIND = "dolly"

DATASET = "databricks/databricks-dolly-15k"
SYSTEM = "you are a helpful assistant."


def iter_dolly_sft(
    *,
    split: str = "train",
    seed: int = 42,
    shuffle: bool = True,
    take: int | None = None,
    include_system: bool = False,
    path: str = DATASET,
    revision: str | None = None,
) -> Iterator[ChatSample]:
    """Every row as a chat, in a seeded order. `path` may name a folder or file in the place of the hub id."""
    options = {"revision": revision} if revision else {}
    rows = load_rows(load_dataset, path, split=split, **options)
    order: list[int] | range = range(len(rows))
    if shuffle:
        import torch

        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
    for index in islice(order, take):
        check_texts(rows[index], ("instruction", "response"), place=f"{path}, row {index},")
        yield row_to_chat(rows[index], index=index, include_system=include_system)


def row_to_chat(row: Mapping[str, Any], *, index: int, include_system: bool = False) -> ChatSample:
    """The seed's mapping: the context, where there is one, stands below the instruction."""
    context = row.get("context") or ""
    user = row["instruction"] + (f"\n\ncontext:\n{context}" if context else "")
    messages = [ChatMessage("user", user), ChatMessage("assistant", row["response"])]
    if include_system:
        messages.insert(0, ChatMessage("system", SYSTEM))
    return ChatSample(messages=messages, source="dolly", meta={"category": row.get("category"), "index": index})
