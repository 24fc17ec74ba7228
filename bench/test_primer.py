"""Tests of bench.primer: which dialogues are asked, and how answers are compared."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from bench import primer as bench
from niels_gpt.chat_format import ROLES
from niels_gpt.data.primer import DIALOGUE_DELIM
from niels_gpt.data.types import Chat
from niels_gpt.inference.sampling import Sampling
from niels_gpt.pipeline.params import parse_params
from tests.conftest import ROOT, with_values

SAMPLE = (ROOT / "params.yaml").read_text()
ALIKE = ("sources.primer", "sources.dialogues")


def test_words_are_a_multiset_without_case_or_order() -> None:
    assert bench.share_of_words("The boat's TAN sails!", "tan sails, the boat's") == 1.0
    assert bench.share_of_words("the sea", "the sea and the boat") == 0.4
    assert bench.share_of_words("the the the", "the sea and the boat") == 0.4
    assert bench.share_of_words("", "Maren") == bench.share_of_words("", "") == 0.0


def test_questions_are_those_of_trained_dialogues_evenly_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    source = parse_params(SAMPLE)[0].chats["dialogues"]
    exchanges = bench.trained_exchanges(source)
    dialogues = (ROOT / "data/primer.txt").read_text().split(DIALOGUE_DELIM)
    assert len(exchanges) == 158
    for exchange in exchanges:
        said = [*exchange.prompt, {"role": "assistant", "content": exchange.answer}]
        transcript = "\n".join(f"{message['role']}: {message['content']}" for message in said)
        assert dialogues[exchange.number - 1].startswith(transcript)
        assert [message["role"] for message in exchange.prompt] in (["user"], ["system", "user"])
    chosen = [exchange.number for exchange in bench.spread(exchanges, 10)]
    assert len(chosen) == 10
    assert chosen[0] < 5
    assert all(10 <= after - before <= 25 for before, after in pairwise(chosen))
    assert bench.spread(exchanges[:3], 10) == exchanges[:3]
    rule = {"by": "hash", "val_frac": 0.9, "seed": 1}
    hashed, _ = parse_params(with_values(SAMPLE, {f"{key}.split": rule for key in ALIKE}))
    assert len(bench.trained_exchanges(hashed.chats["dialogues"])) < 40


class Parrot:
    """Model that gives one answer to everything."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.asked: list[list[dict[str, str]]] = []

    def reply(self, messages: list[dict[str, str]], *, sampling: Sampling, **how: Any) -> Iterator[str]:
        assert sampling.temperature == 0
        self.asked.append(messages)
        yield "niels is a programmer "
        yield "of the North"


def test_the_bench_prints_answers_and_ends_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    parrots: list[Parrot] = []

    def open_parrot(folder: str, **_: object) -> Parrot:
        parrots.append(Parrot(folder))
        return parrots[0]

    monkeypatch.setattr(bench, "open_talker", open_parrot)
    monkeypatch.setattr("sys.argv", ["bench.primer"])
    bench.main()
    (parrot,) = parrots
    assert parrot.folder == "models/sft"
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    shares = {name: share for name, share in found.items() if name.startswith("dialogue ")}
    assert len(shares) == len(parrot.asked) == 10
    assert found["mean"] == pytest.approx(sum(shares.values()) / 10)
    assert shares["dialogue 1"] == max(shares.values()) > 0.15
    assert "user: Who is niels?\nanswered: niels is a programmer of the North\nprimer:   niels is a" in out
    assert {message["role"] for messages in parrot.asked for message in messages} == {"system", "user"}


def test_a_dialogue_is_asked_up_to_its_first_answer() -> None:
    turns = [{"role": role, "content": role} for role in (*ROLES, "user", "assistant")]
    assert bench.first_exchange(3, Chat(id="2", messages=turns)) == bench.Exchange(3, turns[:2], "assistant")
