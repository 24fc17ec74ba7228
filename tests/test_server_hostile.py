"""Tests of hostile clients: each is refused or served within its limits, and other clients are not affected."""

import asyncio
import gc
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import pytest
import torch
from fastapi import Request
from starlette.types import Message

from niels_gpt.inference.engine import Engine, Token
from niels_gpt.inference.sampling import SAMPLING
from niels_gpt.talk.server import app as service_module
from niels_gpt.talk.server.app import Limits, build_app, whole_reply
from niels_gpt.talk.server.scheduler import Answer, Metrics, Scheduler
from niels_gpt.talk.server.schema import ChatReply
from niels_gpt.talk.talker import Talker
from niels_gpt.tokenizer.tokenizers import ByteTokenizer
from tests.servers import (
    CHAT,
    FOR_EVER,
    TEXT,
    TOKENIZE,
    ask,
    assert_refused,
    connect,
    events_of,
    expected,
    for_ever,
    order,
    post_head,
    scheduled,
    serving,
    streamed,
    tiny_talker,
    under_way,
    wait_until,
)

LIMITS = Limits(new_tokens=24)


def filled(unit: str, *, head: str, tail: str, size: int = 1 << 16) -> bytes:
    """Return a body of about `size` bytes that repeats one unit."""
    return (head + ",".join([unit] * ((size - len(head) - len(tail)) // (len(unit) + 1))) + tail).encode()


def prompts(unit: str, *, size: int = 1 << 16) -> bytes:
    return filled(unit, head='{"n": 8, "prompt": [', tail="]}", size=size)


def with_field(field: str, value: str) -> bytes:
    return f'{json.dumps(ask("x"))[:-1]}, "{field}": {value}}}'.encode()


CHOICES, ITEMS = "choices, more than the maximum of 64", "more than the maximum of 10,000"
# Path, body, and words of the refusal; None if it is served.
HOSTILE: dict[str, tuple[str, bytes, str | None]] = {
    "a penalty that is 0 as a float32": (CHAT, with_field("repetition_penalty", "1e-46"), "repetition_penalty"),
    "a penalty that is inf as a float32": (CHAT, with_field("repetition_penalty", "1e39"), "repetition_penalty"),
    "a small penalty": (CHAT, with_field("repetition_penalty", "0.01"), None),
    "a small temperature": (CHAT, with_field("temperature", "5e-324"), None),
    "a small top_p": (CHAT, with_field("top_p", "5e-324"), None),
    "every bias": (CHAT, with_field("logit_bias", json.dumps(dict.fromkeys(range(260), -100))), None),
    "two names of one id": (CHAT, with_field("logit_bias", '{"1": 1, "01": 2}'), "token ids"),
    "an id in another script": (CHAT, with_field("logit_bias", '{"\u0661": 1}'), "token ids"),
    "many biases": (
        CHAT,
        with_field("logit_bias", json.dumps(dict.fromkeys(range(9000), "x"))),
        "more than the maximum of 1024",
    ),
    "a long stop string": (CHAT, with_field("stop", json.dumps("x" * 60_000)), "at most 1024 characters"),
    "a role that is a list": (CHAT, b'{"messages": [{"role": [], "content": "x"}]}', "role"),
    "many prompts": (TEXT, prompts('"a"'), CHOICES),
    "a few prompts too many": (TEXT, prompts('"a"', size=60), CHOICES),
    "many numbers": (TEXT, prompts("1"), "do not fit the context of 64"),
    "many lists of numbers": (TEXT, prompts("[1]"), ITEMS),
    "many empty lists": (TEXT, prompts("[]"), ITEMS),
    "many nulls": (TEXT, prompts("null"), "prompt"),
    "many mistakes": (CHAT, filled("{}", head='{"messages": [', tail="]}"), ITEMS),
    "fewer mistakes": (CHAT, filled("{}", head='{"messages": [', tail="]}", size=9000), "messages.0.role"),
    "many fields": (CHAT, json.dumps(dict.fromkeys(map(str, range(5000)), 1)).encode(), "0 is not supported"),
    "a field of a long name": (CHAT, json.dumps({"y" * 60_000: 1}).encode(), f"{'y' * 100} is not supported"),
    "a bias of a long name": (CHAT, with_field("logit_bias", json.dumps({"y" * 60_000: 1})), "token ids"),
    "many messages": (CHAT, filled('{"role": "user", "content": "a"}', head='{"messages": [', tail="]}"), None),
    "a long text": (TEXT, json.dumps({"prompt": "x" * 60_000}).encode(), "60,000 characters do not fit"),
    "a long question": (CHAT, json.dumps(ask("x" * 60_000)).encode(), None),
    "brackets in a text": (CHAT, json.dumps(ask('["{' * 12_000)).encode(), None),
    "a long text for its tokens": (TOKENIZE, json.dumps({"prompt": "x" * 60_000}).encode(), None),
    "nested lists": (TEXT, b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", "recursion"),
    "no end": (TEXT, b'{"prompt": "' + b'[\\"' * 20_000, "invalid JSON"),
    "NaN": (CHAT, with_field("temperature", "NaN"), "temperature"),
    "Infinity": (CHAT, with_field("presence_penalty", "Infinity"), "presence_penalty"),
    "a number of many digits": (CHAT, with_field("max_tokens", "9" * 4000), None),
}


def send(client: httpx.Client, path: str, body: bytes, words: str | None) -> None:
    answer = client.post(path, content=body)
    if words is None:
        assert answer.status_code == 200, answer.text
    else:
        assert_refused(answer, 400, words)
        assert len(answer.text) < 1000, "what was sent is not sent back"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_is_refused_or_served(name: str, address: str) -> None:
    with httpx.Client(base_url=address, timeout=60) as client:
        send(client, *HOSTILE[name])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(build_app(tiny_talker(), card={}, limits=LIMITS)) as address:
        yield address


@pytest.mark.slow
def test_eight_neighbours_of_hostile_clients_get_their_own_answers() -> None:
    texts = {f"number {i}": expected(f"number {i}", tokens=80) for i in range(8)}
    # Slots for all clients; with fewer, neighbours would only wait.
    with serving(build_app(tiny_talker(slots=24), card={}, limits=replace(LIMITS, new_tokens=80))) as address:
        ended = threading.Event()

        def neighbour(content: str) -> int:
            rounds = 0
            while not (ended.is_set() and rounds):
                assert streamed(address, content, tokens=80) == texts[content]
                rounds += 1
            return rounds

        def hostile(first: int) -> None:
            with httpx.Client(base_url=address, timeout=60) as client:
                for path, body, words in list(HOSTILE.values())[first::2]:
                    leaving(address, path, body)
                    send(client, path, body, words)

        with ThreadPoolExecutor(10) as pool:
            neighbours = [pool.submit(neighbour, content) for content in texts]
            try:
                for each in [pool.submit(hostile, first) for first in range(2)]:
                    each.result()
            finally:
                ended.set()
            assert all(each.result() for each in neighbours)
        wait_until(lambda: under_way(address) == 0)


def leaving(address: str, path: str, body: bytes) -> None:
    """Send a request and disconnect at once."""
    with connect(address) as connection:
        connection.sendall(post_head(address, len(body)).replace(CHAT.encode(), path.encode()) + body)


@pytest.mark.slow
def test_hostile_requests_leave_nothing_behind(address: str) -> None:
    def objects_after() -> int:
        for path, body, words in HOSTILE.values():
            leaving(address, path, body)
            send(client, path, body, words)
        wait_until(lambda: "waiting 0.0" in (page := client.get("/metrics").text) and "under_way 0.0" in page)
        gc.collect()
        return len(gc.get_objects())

    with httpx.Client(base_url=address, timeout=60) as client:
        counts = [objects_after() for _ in range(4)]
    # Each is sent twice per round, so a leak of one object per request would reach this bound.
    assert min(after - before for before, after in pairwise(counts)) < 2 * len(HOSTILE)


class Watched(ByteTokenizer):
    """Byte tokenizer that records the threads in which texts are encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def encode(self, text: str) -> list[int]:
        self.threads.append(threading.current_thread().name)
        return super().encode(text)


def watched() -> tuple[Talker, list[str]]:
    tokenizer = Watched()
    return replace(tiny_talker(), tokenizer=tokenizer), tokenizer.threads


@pytest.mark.slow
def test_large_requests_are_parsed_and_encoded_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    talker, encoding = watched()
    parsing, parse = [], service_module.parse_request

    def noted(kind: Any, body: bytes) -> Any:
        parsing.append(threading.current_thread().name)
        return parse(kind, body)

    monkeypatch.setattr(service_module, "parse_request", noted)
    long = "x" * 5000
    with serving(build_app(talker, card={}, limits=LIMITS)) as address:
        assert httpx.post(address + TOKENIZE, json={"prompt": "x"}, timeout=60).status_code == 200
        (event_loop,) = {*parsing, *encoding}  # small requests are parsed and encoded there
        parsing.clear()
        encoding.clear()
        for path, body in (
            (CHAT, ask(long)),
            (TEXT, {"prompt": ["x"] * 60 + [" " * 64] * 4, "max_tokens": 1}),
            (TOKENIZE, {"prompt": long}),
        ):
            answer = httpx.post(address + path, content=json.dumps(body, indent=100), timeout=60)
            assert answer.status_code == 200, answer.text
    assert len(parsing) == 3
    assert len(encoding) >= 66
    assert event_loop not in parsing + encoding


@pytest.mark.slow
def test_too_many_choices_are_refused_before_a_text_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    talker, encoding = watched()
    asked: list[int] = []
    answer = Scheduler.answer
    monkeypatch.setattr(Scheduler, "answer", lambda self, orders: asked.append(len(orders)) or answer(self, orders))
    with serving(build_app(talker, card={}, limits=replace(LIMITS, queue=6))) as address:
        for n, body in ((7, {"prompt": ["a"] * 7}), (8, {"prompt": "a", "n": 8}), (8, {"prompt": ["a"] * 4, "n": 2})):
            sentence = f"are {n} choices, more than the maximum of 6 per request: send fewer at a time"
            assert_refused(httpx.post(address + TEXT, json=body, timeout=60), 400, sentence)
        assert (encoding, asked) == ([], [])
        answered = httpx.post(address + TEXT, json={"prompt": ["a"] * 3, "n": 2, "max_tokens": 1}, timeout=60)
        assert len(answered.json()["choices"]) == 6
        assert (len(encoding), asked) == (3, [6])


@pytest.mark.slow
def test_a_full_queue_refuses_requests_without_parsing_them() -> None:
    """If the queue is full, a request is refused before it is parsed."""
    talker, encoding = watched()
    with serving(build_app(replace(talker, slots=1), card={}, limits=replace(FOR_EVER, queue=1))) as address:
        body = for_ever(stream=True)
        with connect(address) as first, connect(address) as second:
            for n, one in enumerate((first, second)):
                one.sendall(post_head(address, len(body)) + body)
                wait_until(
                    lambda n=n: f"waiting {n}.0" in httpx.get(f"{address}/metrics").text and under_way(address) == 1
                )
            before = len(encoding)
            assert_refused(httpx.post(address + CHAT, content=b"no JSON", timeout=60), 503, "queued already")
            assert len(encoding) == before


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_it_waits_gives_up_its_place(stream: bool) -> None:
    with serving(build_app(tiny_talker(slots=1), card={}, limits=replace(FOR_EVER, queue=1))) as address:
        body = for_ever(stream=stream)

        def waiting(n: int) -> Callable[[], bool]:
            return lambda: f"answers_waiting {n}.0" in httpx.get(f"{address}/metrics").text

        with connect(address) as first:
            first.sendall(post_head(address, len(body)) + body)
            wait_until(lambda: under_way(address) == 1)
            with connect(address) as second:
                second.sendall(post_head(address, len(body)) + body)
                wait_until(waiting(1))
            wait_until(waiting(0))
            assert under_way(address) == 1, "the first is still being answered"


def test_a_whole_reply_ends_when_its_client_leaves_before_any_text() -> None:
    """The scheduler sends nothing to a cancelled answer, so its handler must not wait for an event."""

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def work() -> None:
        answer = Answer(1, Metrics())
        reply = ChatReply(tiny_talker(), logprobs=False, prompt_tokens=1, sources=None)
        await asyncio.wait_for(whole_reply(reply, answer, Request({"type": "http"}, receive)), 60)
        assert not answer.wanted

    asyncio.run(work())


def fragile_talker(**more: Any) -> Talker:
    """Return a talker in whose model the embedding of byte 7 is NaN; it never generates that byte."""
    whole = tiny_talker(**more)
    model = type(whole.model)(replace(whole.model.cfg, tied=False))
    model.load_state_dict({**whole.model.state_dict(), "lm_head.weight": whole.model.tok_emb.weight.clone()})
    with torch.no_grad():
        model.tok_emb.weight[7] = float("nan")
        model.lm_head.weight[7] = 0
    return replace(whole, model=model)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_fails_ends_alone_with_all_its_choices(stream: bool) -> None:
    with serving(build_app(fragile_talker(slots=6), card={}, limits=FOR_EVER)) as address:
        with ThreadPoolExecutor(1) as pool:
            neighbour = pool.submit(streamed, address, "number 1", tokens=300)
            wait_until(lambda: under_way(address) == 1)
            # One of the prompts fails; the choices beside it, and those that wait, would otherwise never end.
            body = {"prompt": ["a", "b", "\7", *"cdefgh"], "n": 2, "stream": stream, "top_k": 20}
            for _ in range(3):
                answer = httpx.post(address + TEXT, json=body, timeout=60)
                assert answer.status_code == (200 if stream else 500)
                assert "logits are no numbers" in answer.text
                wait_until(lambda: under_way(address) <= 1 and "waiting 0.0" in httpx.get(f"{address}/metrics").text)
            text = neighbour.result()
        messages = [{"role": "user", "content": "number 1"}]
        alone = fragile_talker().reply(messages, sampling=SAMPLING, max_new_tokens=300, seed=1)
        assert text == "".join(alone)


def test_an_error_of_a_whole_step_frees_all_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    step, broken = Engine.step, [True]

    def failing(self: Engine) -> list[Token]:
        if broken and self._rows:
            broken.clear()
            raise RuntimeError("out of memory")
        return step(self)

    monkeypatch.setattr(Engine, "step", failing)

    async def work(scheduler: Scheduler) -> None:
        with pytest.raises(RuntimeError, match="out of memory"):
            await events_of(scheduler.answer([order(9)] * 4))  # two are running, and two wait
        after = [scheduler.answer([order(4), order(4)]), scheduler.answer([order(4)])]
        for answer in after:
            assert (await events_of(answer))[-1].written == 4
        assert not scheduler.under_way
        assert not scheduler.waiting

    scheduled(work, slots=2, queue=4)
