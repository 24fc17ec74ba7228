"""Tests of source kind `oasst1`: message trees become chats."""

from typing import Any

import pytest

from niels_gpt.data import oasst1
from niels_gpt.data.oasst1 import iter_oasst1_sft, reconstruct_threads
from tests.watchdog import watchdog


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


def test_every_path_from_root_to_leaf_is_a_thread() -> None:
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


def test_deleted_orphaned_and_foreign_messages_never_appear() -> None:
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
    monkeypatch.setattr(oasst1, "load_rows", lambda *args, **options: records)
    orders = [[c.meta["message_tree_id"] for c in iter_oasst1_sft(seed=seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(f"t{t}" for t in range(1, 20, 2))
    assert len(list(iter_oasst1_sft(take_trees=3))) == 3
    assert not any(m.role == "system" for c in iter_oasst1_sft(english_only=False) for m in c.messages)


def test_blank_leaves_add_no_thread() -> None:
    blank = [message(f"x{i}", "a2", "prompter", " ") for i in range(2)]
    assert ids([*TREE, *blank]) == ids(TREE)  # two blank messages below a leaf
    assert ids([*TREE, message("x", "a1", "prompter", "\n")]) == ids(TREE)  # one next to an answer
    below = [
        message("x", "a2", "prompter", ""),
        message("y", "x", "assistant", ""),
        message("z", "x", "assistant", " "),
    ]
    assert ids([*TREE, *below]) == ids(TREE)  # a whole branch of them
    assert ids([message("r", None, "prompter", " "), message("s", "r", "assistant", " ")]) == []


def test_replies_to_a_blank_message_take_its_place() -> None:
    blank_root = [message("r", None, "prompter", " "), message("p", "r", "prompter"), message("a", "p", "assistant")]
    assert ids(blank_root) == [["p", "a"]]


def test_a_second_message_with_the_same_id_is_ignored() -> None:
    with watchdog():
        assert ids([*TREE, *TREE]) == ids(TREE)
        below_itself = [message("x", None, "prompter", ""), message("x", "x", "prompter", "")]
        assert ids(below_itself) == []


def test_every_message_is_looked_at_a_fixed_number_of_times() -> None:
    looks = 0

    class Counted(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            nonlocal looks
            looks += 1
            return super().__getitem__(key)

    deep = [message(f"d{i}", f"d{i - 1}" if i else None, "assistant" if i % 2 else "prompter") for i in range(5_000)]
    wide = [message("w", None, "prompter"), *(message(f"w{i}", "w", "assistant") for i in range(4_999))]
    blank = [message(f"b{i}", f"b{i - 1}" if i else None, "prompter", "") for i in range(5_000)]
    threads = reconstruct_threads([Counted(m) for m in (*deep, *wide, *blank)])
    assert len(threads) == 1 + 4_999
    assert len(threads[0].messages) == 32
    assert looks < 20 * 15_000  # searching all of them for each one would take 225,000,000


def test_rows_that_are_no_messages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in ({"text": "x"}, {**TREE[0], "text": None}, {**TREE[0], "message_id": None}):
        monkeypatch.setattr(oasst1, "load_rows", lambda *args, row=row, **options: [TREE[0], row])
        with pytest.raises(ValueError, match=r"OpenAssistant/oasst1, row 1, has no text in .*(message_id|text)"):
            list(iter_oasst1_sft())
