"""Source kind `oasst1`: OpenAssistant's message trees; a chat is a thread, the path from a root to a leaf.

The original specification asks for all such paths, even if the leaf is a prompter's message without an answer. A last
user turn is never supervised, so it costs a few tokens of context and does no harm.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from niels_gpt.data.hub import HubSettings, load_rows
from niels_gpt.data.readers.tables import check_texts
from niels_gpt.data.types import Chat, ChatMessage, ChatSample, Count, Request, Role, Seed

KIND = "oasst1"

DATASET = "OpenAssistant/oasst1"
_FIELDS = ("message_id", "message_tree_id", "role", "text")
_Way = tuple[Mapping[str, Any], ...]
_ROLES: dict[str, Role] = {"prompter": "user", "assistant": "assistant"}


@dataclass(frozen=True)
class Settings(HubSettings):
    splits: ClassVar[tuple[str, ...]] = ("tree", "document")

    english_only: Annotated[bool, "skip messages in other languages"] = True
    max_messages: Annotated[int, Ge(2), "messages of a thread at most"] = 32
    seed: Annotated[Seed, "seed of the trees' order"] = 42
    max_trees: Annotated[Count | None, "trees read at most; null reads all"] = None


def chats(settings: Settings, request: Request) -> Iterator[Chat]:
    """Yield one chat per thread, grouped by message tree."""
    samples = iter_oasst1_sft(
        path=request.path,
        seed=settings.seed,
        take_trees=settings.max_trees,
        english_only=settings.english_only,
        max_messages=settings.max_messages,
        revision=request.revision,
    )
    for sample in samples:
        yield Chat.of(sample, id=sample.meta["leaf_message_id"], group=sample.meta["message_tree_id"])


def iter_oasst1_sft(
    *,
    split: str = "train",
    seed: int = 42,
    shuffle_trees: bool = True,
    take_trees: int | None = None,
    english_only: bool = True,
    max_messages: int = 32,
    path: str = DATASET,
    revision: str | None = None,
) -> Iterator[ChatSample]:
    """Yield threads tree by tree, with the trees shuffled by `seed`; `take_trees` counts trees that have a thread."""
    trees: dict[Any, list[Mapping[str, Any]]] = {}
    for number, record in enumerate(load_rows(path, split=split, revision=revision)):
        check_texts(record, _FIELDS, place=f"{path}, row {number},")
        trees.setdefault(record["message_tree_id"], []).append(record)
    order = list(trees)
    if shuffle_trees:
        random.Random(seed).shuffle(order)
    taken = 0
    for tree in order:
        if take_trees is not None and taken >= take_trees:
            return
        threads = reconstruct_threads(trees[tree], english_only=english_only, max_messages=max_messages)
        taken += bool(threads)
        yield from threads


def reconstruct_threads(
    records: Iterable[Mapping[str, Any]], *, english_only: bool = True, max_messages: int = 32
) -> list[ChatSample]:
    """Return all threads of the trees in `records`, in the order of the records.

    Deleted messages, those with an unknown role and, with `english_only`, those with another `lang` are removed with
    all their descendants. Texts are stripped. A blank message is replaced by its replies, so a blank leaf adds no
    thread. A thread is truncated to `max_messages` messages, and all leaves beyond that point share one thread. It is
    dropped if it does not start with the prompter or has the same role twice in a row.
    """
    messages: dict[str, Mapping[str, Any]] = {}
    for record in records:
        messages.setdefault(record["message_id"], record)  # a second record of the same id could form a cycle
    children: dict[Any, list[Mapping[str, Any]]] = {}
    for record in messages.values():
        spoken = not english_only or record.get("lang") in (None, "en")
        if spoken and record["role"] in _ROLES and not record.get("deleted"):
            children.setdefault(record.get("parent_id"), []).append(record)
    threads: list[ChatSample] = []
    # Depth-first with a stack, since trees may exceed Python's recursion limit. Pushing in reverse keeps the order.
    stack: list[tuple[Mapping[str, Any], _Way]] = [(root, ()) for root in reversed(_said_below(None, children))]
    while stack:
        record, above = stack.pop()
        way: _Way = (*above, record)
        below = _said_below(record["message_id"], children) if len(way) < max_messages else []
        if below:
            stack += [(child, way) for child in reversed(below)]
        elif way[0]["role"] == "prompter" and all(a["role"] != b["role"] for a, b in pairwise(way)):
            threads.append(_thread(way))
    return threads


def _said_below(message_id: Any, children: Mapping[Any, list[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    """Return the replies to a message (None: the roots) in order, with blank ones replaced by their own replies."""
    stack, said = children.get(message_id, [])[::-1], []
    while stack:
        record = stack.pop()
        if record["text"].strip():
            said.append(record)
        else:
            stack += reversed(children.get(record["message_id"], []))
    return said


def _thread(way: _Way) -> ChatSample:
    ids = [record["message_id"] for record in way]
    return ChatSample(
        messages=[ChatMessage(_ROLES[record["role"]], record["text"].strip()) for record in way],
        source="oasst1",
        meta={"message_tree_id": way[0].get("message_tree_id"), "leaf_message_id": ids[-1], "message_ids": ids},
    )
