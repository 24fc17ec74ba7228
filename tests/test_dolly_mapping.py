"""Tests of source kind `dolly`: rows become chats."""

import json
from pathlib import Path

import pytest
import torch

from niels_gpt.data import dolly
from niels_gpt.data.dolly import iter_dolly_sft, row_to_chat

ROW = {"instruction": "What is rye?", "context": "", "response": "A grain.", "category": "open_qa"}


def test_dolly_rows_are_mapped_exactly() -> None:
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
    monkeypatch.setattr(dolly, "load_rows", lambda *args, **options: rows)
    orders = [[c.meta["index"] for c in iter_dolly_sft(seed=seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(50))
    assert orders[0] == torch.randperm(50, generator=torch.Generator().manual_seed(1)).tolist()
    assert [c.meta["index"] for c in iter_dolly_sft(shuffle=False, take=3)] == [0, 1, 2]


def test_a_local_file_takes_the_place_of_the_hub_id(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({**ROW, "instruction": f"q{i}"}) + "\n" for i in range(5)))
    chats = list(iter_dolly_sft(path=str(tmp_path / "rows.jsonl"), shuffle=False))
    assert [c.messages[0].content for c in chats] == [f"q{i}" for i in range(5)]


@pytest.mark.parametrize("row", [{"instruction": "q"}, {**ROW, "response": None}, {**ROW, "instruction": 3}])
def test_a_row_without_question_or_answer_is_named(monkeypatch: pytest.MonkeyPatch, row: dict[str, object]) -> None:
    monkeypatch.setattr(dolly, "load_rows", lambda *args, **options: [ROW, row])
    with pytest.raises(ValueError, match=r"databricks-dolly-15k, row 1, has no text in (instruction|response)"):
        list(iter_dolly_sft(shuffle=False))
