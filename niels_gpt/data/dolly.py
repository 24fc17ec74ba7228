"""Source kind `dolly`: databricks-dolly-15k, human-written instructions; a chat is one question and one answer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

from niels_gpt.data.hub import HubSettings, load_rows
from niels_gpt.data.readers.tables import check_texts
from niels_gpt.data.types import Chat, ChatMessage, ChatSample, Count, Request, Seed
from niels_gpt.rng import permutation

KIND = "dolly"

DATASET = "databricks/databricks-dolly-15k"
SYSTEM = "you are a helpful assistant."


@dataclass(frozen=True)
class Settings(HubSettings):
    include_system: Annotated[bool, "whether every chat begins with a system message"] = False
    seed: Annotated[Seed, "seed of the rows' order"] = 42
    max_documents: Annotated[Count | None, "chats read at most; null reads all"] = None


def chats(settings: Settings, request: Request) -> Iterator[Chat]:
    """Yield one chat per row of the dataset."""
    samples = iter_dolly_sft(
        path=request.path,
        seed=settings.seed,
        take=settings.max_documents,
        include_system=settings.include_system,
        revision=request.revision,
    )
    for sample in samples:
        yield Chat.of(sample, id=str(sample.meta["index"]))


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
    """Yield the first `take` rows (None: all) of a seeded shuffle as chats; `path` is a hub id, a folder or a file."""
    rows = load_rows(path, split=split, revision=revision)
    order = permutation(len(rows), seed) if shuffle else range(len(rows))
    for index in islice(order, take):
        check_texts(rows[index], ("instruction", "response"), place=f"{path}, row {index},")
        yield row_to_chat(rows[index], index=index, include_system=include_system)


def row_to_chat(row: Mapping[str, Any], *, index: int, include_system: bool = False) -> ChatSample:
    """Return a row as a chat, as in the original specification: the context, if any, follows the instruction."""
    context = row.get("context") or ""
    user = row["instruction"] + (f"\n\ncontext:\n{context}" if context else "")
    messages = [ChatMessage("user", user), ChatMessage("assistant", row["response"])]
    if include_system:
        messages.insert(0, ChatMessage("system", SYSTEM))
    return ChatSample(messages=messages, source="dolly", meta={"category": row.get("category"), "index": index})
