"""Tests of prompt log probabilities (`echo`), as evaluation harnesses request them."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch

from niels_gpt.inference import engine as engine_module
from niels_gpt.inference.engine import Engine
from niels_gpt.inference.sampling import GREEDY
from niels_gpt.talk.server.app import build_app
from niels_gpt.talk.talker import Talker
from tests.servers import EOT, assert_refused, openai_client, serving, tiny_talker
from tests.talkers import counted_reads, saying

PROMPTS = ["a", "The river", "æøå and 日本", "x" * 64, "The river bends", *(f"number {i}" for i in range(20))]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(build_app(tiny_talker(slots=4), card={})) as address:
        yield address


def direct(talker: Talker, ids: list[int]) -> torch.Tensor:
    """Return the model's own log probabilities of all next ids, after each of these ids."""
    with torch.inference_mode():
        return talker.model(torch.tensor([ids]))[0].double().log_softmax(dim=-1)


def completed(address: str, **body: Any) -> Any:
    answer = httpx.post(f"{address}/v1/completions", json={"temperature": 0, **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("as_ids", [False, True])
def test_prompts_are_scored_as_the_model_itself_does(address: str, as_ids: bool) -> None:
    talker = tiny_talker()
    ids = [list(prompt.encode()) for prompt in PROMPTS]
    asked = ids if as_ids else PROMPTS
    answer = completed(address, prompt=asked, echo=True, logprobs=2, max_tokens=0)
    assert answer["usage"] == {
        "prompt_tokens": sum(map(len, ids)),
        "completion_tokens": 0,
        "total_tokens": sum(map(len, ids)),
    }
    for choice, text, prompt in zip(answer["choices"], PROMPTS, ids, strict=True):
        assert (choice["text"], choice["finish_reason"]) == (text, "length")
        found, own = choice["logprobs"], direct(talker, prompt)
        assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
        expected = [float(row[id]) for row, id in zip(own, prompt[1:], strict=False)]
        assert found["token_logprobs"][1:] == pytest.approx(expected, abs=1e-5)
        tops = [row.topk(2).values.tolist() for row in own[:-1]]
        assert [list(top.values()) for top in found["top_logprobs"][1:]] == [pytest.approx(t, abs=1e-5) for t in tops]
        # An offset is where a token's text begins; a token inside a character has the offset of that character.
        starts = [len(bytes(prompt[:i]).decode(errors="ignore")) for i in range(len(prompt))]
        assert found["text_offset"] == starts


@pytest.mark.slow
def test_what_follows_the_prompt_is_scored_with_it(address: str) -> None:
    body: dict[str, Any] = {"prompt": PROMPTS[1], "max_tokens": 5, "logprobs": 1}
    plain, echoed = (completed(address, **body, echo=echo)["choices"][0] for echo in (False, True))
    assert echoed["text"] == PROMPTS[1] + plain["text"]
    n = len(PROMPTS[1])
    for field in ("tokens", "top_logprobs"):
        assert len(echoed["logprobs"][field]) == n + 5
    assert echoed["logprobs"]["tokens"][n:] == plain["logprobs"]["tokens"]
    assert echoed["logprobs"]["token_logprobs"][n:] == pytest.approx(plain["logprobs"]["token_logprobs"], abs=1e-5)
    assert echoed["logprobs"]["text_offset"][n:] == [n + offset for offset in plain["logprobs"]["text_offset"]]
    client = openai_client(address)
    parts = [
        part.choices[0] for part in client.completions.create(model="tiny", **body, echo=True, seed=1, stream=True)
    ]
    assert "".join(part.text for part in parts).startswith(PROMPTS[1])
    assert sum(len(part.logprobs.tokens or []) for part in parts if part.logprobs) == n + 5
    assert [choice["text"] for choice in completed(address, prompt=PROMPTS[:2], max_tokens=0)["choices"]] == ["", ""]
    assert completed(address, prompt="ab", echo=True, max_tokens=0)["choices"][0]["logprobs"] is None
    negative = httpx.post(f"{address}/v1/completions", json={"prompt": "a", "max_tokens": -1})
    assert_refused(negative, 400, "max_tokens")


def test_half_a_character_at_the_end_of_a_prompt_is_echoed_once(address: str) -> None:
    choice = completed(address, prompt=list("æ".encode()[:1]), echo=True, logprobs=0, max_tokens=0)["choices"][0]
    assert (choice["text"], choice["logprobs"]["text_offset"]) == ("\ufffd", [0])


@pytest.mark.slow
def test_an_end_after_the_prompt_is_a_token_of_the_reply() -> None:
    """lm-eval requests one token and ignores the last: without the end token it would ignore the prompt's last."""
    with serving(build_app(saying("chat_tokens", [ord("c"), EOT]), card={})) as address:
        choice = completed(address, prompt="abc", echo=True, logprobs=1, max_tokens=1)["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("abc", "stop")
        assert choice["logprobs"]["tokens"] == ["a", "b", "c", f"id:{EOT}"]
        assert completed(address, prompt="abc", logprobs=1, max_tokens=1)["choices"][0]["logprobs"]["tokens"] == []


def test_prompts_of_neighbouring_slots_are_prefilled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    talker = tiny_talker()
    engine, read = Engine(talker.model, slots=8), counted_reads(monkeypatch)
    prompts = [list(f"prompt no {i}".encode()) for i in range(8)]

    def scored() -> list[list[float | None]]:
        rows = [engine.add(prompt, GREEDY, top_logprobs=0, score_prompt=True) for prompt in prompts]
        found = [[scored.logprob for scored in token.prompt] for token in engine.step()]
        assert [token.prompt for token in engine.step()] == [()] * 8  # the rows continue and are not scored again
        for row in rows:
            engine.drop(row)
        return found

    together = scored()
    assert read == [80, 8, 8]  # 8 prompts without their last ids, then one token each, twice
    read.clear()
    monkeypatch.setattr(engine_module, "MOST_SCORED", 25)  # two prompts at a time
    apart = scored()  # computed anew, although the slots still hold the same prompts
    assert read == [20, 20, 20, 20, 8, 8]
    for one, other, prompt in zip(together, apart, prompts, strict=True):
        own = direct(talker, prompt)
        expected = [float(row[id]) for row, id in zip(own, prompt[1:], strict=False)]
        assert one[1:] == pytest.approx(expected, abs=1e-5)
        assert other[1:] == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_scored_rows_beside_others_change_nothing_for_them(address: str) -> None:
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 30, "temperature": 0}
    alone = httpx.post(f"{address}/v1/chat/completions", json=chat, timeout=60).json()["choices"]
    with httpx.stream("POST", f"{address}/v1/chat/completions", json={**chat, "stream": True}, timeout=60) as stream:
        lines = stream.iter_lines()
        first = next(lines)
        completed(address, prompt=PROMPTS, echo=True, logprobs=1, max_tokens=1)
        events = [json.loads(line[6:]) for line in [first, *lines] if line.startswith("data: {")]
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == alone[0]["message"]["content"]
