"""dolly and oasst1: rows and trees into chats."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.data import dolly, oasst1
from niels_gpt.data.dolly import iter_dolly_sft, row_to_chat
from niels_gpt.data.oasst1 import iter_oasst1_sft, reconstruct_threads

ROW = {"instruction": "What is rye?", "context": "", "response": "A grain.", "category": "open_qa"}


def test_dolly_is_mapped_to_the_letter() -> None:
    chat = row_to_chat(ROW, index=7)
    assert [(m.role, m.content) for m in chat.messages] == [("user", "What is rye?"), ("assistant", "A grain.")]
    assert chat.meta == {"category": "open_qa", "index": 7}
    with_context = row_to_chat({**ROW, "context": "Rye grows\nin the north."}, index=0, include_system=True)
    assert [(m.role, m.content) for m in with_context.messages] == [
        ("system", "you are a helpful assistant."),
        ("user", "What is rye?\n\ncontext:\nRye grows\nin the north."),
        ("assistant", "A grain."),
    ]


def test_dolly_order_is_seeded_and_every_row_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{**ROW, "instruction": f"q{i}"} for i in range(50)]
    monkeypatch.setattr(dolly, "load_dataset", lambda *args, **options: rows)
    orders = [[c.meta["index"] for c in iter_dolly_sft(seed=seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(50))
    assert [c.meta["index"] for c in iter_dolly_sft(shuffle=False, take=3)] == [0, 1, 2]


def test_a_local_file_takes_the_place_of_the_hub_id(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({**ROW, "instruction": f"q{i}"}) + "\n" for i in range(5)))
    chats = list(iter_dolly_sft(path=str(tmp_path / "rows.jsonl"), shuffle=False))
    assert [c.messages[0].content for c in chats] == [f"q{i}" for i in range(5)]


def message(id: str, parent: str | None, role: str, text: str = "text", **more: Any) -> dict[str, Any]:
    tree = more.pop("tree", "t")
    return {"message_id": id, "parent_id": parent, "role": role, "text": text, "message_tree_id": tree, **more}


TREE = [
    message("r", None, "prompter", " root "),
    message("a1", "r", "assistant", "one"),
    message("a2", "r", "assistant", "two"),
    message("p1", "a1", "prompter", "more"),
    message("b1", "p1", "assistant", "end one"),
    message("b2", "p1", "assistant", "end two"),
]


def ids(records: list[dict[str, Any]], **options: Any) -> list[list[str]]:
    return [chat.meta["message_ids"] for chat in reconstruct_threads(records, **options)]


def test_every_way_from_root_to_leaf_is_a_thread() -> None:
    assert ids(TREE) == [["r", "a1", "p1", "b1"], ["r", "a1", "p1", "b2"], ["r", "a2"]]
    thread = reconstruct_threads(TREE)[0]
    assert [m.role for m in thread.messages] == ["user", "assistant", "user", "assistant"]
    assert thread.messages[0].content == "root"
    assert thread.meta == {"message_tree_id": "t", "leaf_message_id": "b1", "message_ids": ["r", "a1", "p1", "b1"]}


def test_a_long_thread_is_cut_once() -> None:
    assert ids(TREE, max_messages=2) == [["r", "a1"], ["r", "a2"]]
    assert ids(TREE, max_messages=3) == [["r", "a1", "p1"], ["r", "a2"]]


def test_a_prompter_leaf_ends_its_thread_as_it_stands() -> None:
    assert ids([*TREE, message("p2", "a2", "prompter", "and?")])[-1] == ["r", "a2", "p2"]


def test_what_is_deleted_orphaned_or_foreign_never_appears() -> None:
    gone = [{**m, "deleted": m["message_id"] == "p1"} for m in TREE]
    assert ids(gone) == [["r", "a1"], ["r", "a2"]]
    orphan = [*TREE, message("o", "nowhere", "assistant")]
    assert ids(orphan) == ids(TREE)
    foreign = [{**m, "lang": "es" if m["message_id"] == "a1" else "en"} for m in TREE]
    assert ids(foreign) == [["r", "a2"]]
    assert ids(foreign, english_only=False) == ids(TREE)
    assert ids([{**m, "deleted": True} for m in TREE]) == []


def test_blank_messages_are_skipped_and_doubled_roles_drop_the_thread() -> None:
    blank = [{**m, "text": " \n" if m["message_id"] == "p1" else m["text"]} for m in TREE]
    assert ids(blank) == [["r", "a2"]]  # without p1, assistant follows assistant
    doubled = [*TREE, message("x", "r", "prompter", "again"), message("y", "x", "assistant")]
    assert ids(doubled) == ids(TREE)


def test_trees_come_in_a_seeded_order_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        record
        for t in range(20)
        for record in (
            message(f"{t}r", None, "prompter", tree=f"t{t}", lang="en" if t % 2 else "de"),
            message(f"{t}a", f"{t}r", "assistant", tree=f"t{t}", lang="en" if t % 2 else "de"),
        )
    ]
    monkeypatch.setattr(oasst1, "load_dataset", lambda *args, **options: records)
    orders = [[c.meta["message_tree_id"] for c in iter_oasst1_sft(seed=seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(f"t{t}" for t in range(1, 20, 2))
    assert len(list(iter_oasst1_sft(take_trees=3))) == 3
    assert not any(m.role == "system" for c in iter_oasst1_sft(english_only=False) for m in c.messages)


def test_a_hundred_thousand_messages_take_no_quadratic_time() -> None:
    deep = [message(f"d{i}", f"d{i - 1}" if i else None, "assistant" if i % 2 else "prompter") for i in range(50_000)]
    wide = [message("w", None, "prompter"), *(message(f"w{i}", "w", "assistant") for i in range(49_999))]
    start = time.process_time()
    threads = reconstruct_threads(deep + wide)
    assert len(threads) == 1 + 49_999
    assert len(threads[0].messages) == 32
    assert time.process_time() - start < 5
