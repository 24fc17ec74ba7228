"""Tests of the OpenAI-compatible API with a real model and the real client."""

import asyncio
import gc
import json
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import httpx
import pytest
from starlette.exceptions import HTTPException

from niels_gpt.inference.engine import Engine, Token
from niels_gpt.talk.server import access
from niels_gpt.talk.server import scheduler as scheduler_module
from niels_gpt.talk.server.app import Limits, build_app
from niels_gpt.talk.server.scheduler import Scheduler
from niels_gpt.talk.server.schema import ChatRequest
from tests.servers import (
    EOT,
    FOR_EVER,
    LIMITS,
    ask,
    assert_refused,
    connect,
    events_of,
    expected,
    for_ever,
    openai_client,
    order,
    post,
    post_all,
    post_head,
    scheduled,
    serving,
    tiny_talker,
    under_way,
    wait_until,
)

if TYPE_CHECKING:
    import openai


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(build_app(tiny_talker(), card={"parameters": "few"}, limits=LIMITS)) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> "openai.OpenAI":
    return openai_client(address)


def test_the_real_client_lists_asks_and_streams(client: "openai.OpenAI") -> None:
    from openai import NotFoundError

    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(NotFoundError, match="no model 'other/one' here; this server has 'tiny'"):
        client.models.retrieve("other/one")
    whole = client.chat.completions.create(**ask("hello"))  # type: ignore[call-overload]
    assert whole.choices[0].message.content == expected("hello")
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (8, 20, 28)
    parts = list(client.chat.completions.create(**ask("hello", stream=True)))  # type: ignore[call-overload]
    assert "".join(part.choices[0].delta.content or "" for part in parts) == expected("hello")
    assert [part.choices[0].delta.role for part in parts] == ["assistant", *[None] * (len(parts) - 1)]
    assert [part.choices[0].finish_reason for part in parts] == [*[None] * (len(parts) - 1), "length"]
    assert len(parts) > 5
    assert len({part.id for part in parts} | {whole.id}) == 2


@pytest.mark.slow
def test_every_field_reaches_the_model(client: "openai.OpenAI") -> None:
    def said(**fields: object) -> str | None:
        answer = client.chat.completions.create(**ask("hello", **fields))  # type: ignore[call-overload]
        content: str | None = answer.choices[0].message.content
        return content

    alike = said(temperature=0)
    assert said(extra_body={"top_k": 1}) == alike != said()
    assert said(top_p=1e-300) == alike
    assert said(temperature=1e-320) == alike
    assert said(seed=2) != said()
    assert said(seed=None) != said(seed=None)
    assert said(max_tokens=3) == expected("hello", tokens=3)
    assert said(max_completion_tokens=3) == expected("hello", tokens=3)
    null = dict.fromkeys(("temperature", "top_p", "n", "stream", "max_completion_tokens"))
    assert said(extra_body=null) == said()
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    assert said(messages=chat) != said()


def test_a_chat_that_no_longer_fits_loses_its_beginning() -> None:
    app = build_app(tiny_talker(), card={})
    last = {"role": "user", "content": "hello"}
    chat = [{"role": "user", "content": "x" * 40}, {"role": "assistant", "content": "y"}, last]
    short, long = (post(app, {**ask(""), "messages": messages}).json() for messages in ([last], chat))
    assert long["choices"] == short["choices"]
    assert long["usage"] == short["usage"]
    assert (long["forgotten_messages"], "forgotten_messages" in short) == (2, False)


def test_a_question_beyond_the_context_says_what_was_not_read() -> None:
    app = build_app(tiny_talker(), card={})
    whole, cut = (post(app, ask("x" * length, max_tokens=1)).json() for length in (61, 70))
    assert "cut_tokens" not in whole
    assert cut["cut_tokens"] == 9
    assert whole["usage"]["prompt_tokens"] == cut["usage"]["prompt_tokens"] == 64  # what the model was given
    first, *_ = post(app, ask("x" * 70, max_tokens=1, stream=True)).text.split("\n\n")
    assert json.loads(first.removeprefix("data: "))["cut_tokens"] == 9


def test_nobody_gets_more_than_the_limit() -> None:
    app = build_app(tiny_talker(), card={}, limits=Limits(new_tokens=5))
    for most in ({"max_tokens": 40}, {"max_tokens": None}, {"max_completion_tokens": 40, "max_tokens": 1}):
        answer = post(app, {**ask("hello"), **most}).json()
        assert answer["usage"]["completion_tokens"] == 5
        assert answer["choices"][0]["finish_reason"] == "length"


def test_an_answer_says_whether_it_was_ended_or_cut_off() -> None:
    app = build_app(tiny_talker(), card={})
    text = expected("x")
    for more, reason in (
        ({"logit_bias": {EOT: 100}}, "stop"),
        ({"stop": text[9:12]}, "stop"),
        ({"stop": text[-1:]}, "stop"),
        ({}, "length"),
    ):
        assert post(app, ask("x", **more)).json()["choices"][0]["finish_reason"] == reason
        events = post(app, ask("x", stream=True, **more)).text.split("\n\n")
        assert json.loads(events[-3].removeprefix("data: "))["choices"][0]["finish_reason"] == reason
        assert events[-2:] == ["data: [DONE]", ""]


def test_what_is_wrong_is_refused_in_a_sentence(client: "openai.OpenAI", address: str) -> None:
    from openai import APIStatusError, BadRequestError, NotFoundError

    for change, error, words in (
        ({"model": "gpt-5"}, NotFoundError, "no model 'gpt-5'"),
        ({"messages": []}, BadRequestError, "messages"),
        ({"temperature": -1}, BadRequestError, "temperature"),
        ({"messages": [{"role": "bot", "content": "x"}]}, BadRequestError, "role"),
        ({"messages": [{"role": "user", "content": "x" * 300_000}]}, APIStatusError, "larger than 200,000"),
    ):
        with pytest.raises(error, match=words):
            client.chat.completions.create(**{**ask("x"), **change})  # type: ignore[call-overload]

    def endless() -> Iterator[bytes]:
        yield b'{"messages": [{"role": "user", "content": "'
        for _ in range(300):
            yield b"x" * 1000

    assert_refused(httpx.post(f"{address}/v1/chat/completions", content=endless()), 413, "send a shorter chat")


def test_a_body_that_is_too_large_is_not_waited_for(address: str) -> None:
    with connect(address) as connection:
        connection.sendall(post_head(address, 10**12) + b" " * 300_000)
        assert b" 413 " in connection.recv(65536)


HALF_PAIR = '[{"role": "user", "content": "\\ud800"}]'
ODD_VALUES = (
    *("null", "true", "false", "0", "-1", "2", "0.5", "-0.0", "5e-324", "1e-320", "1e-300", "1e308", "1e400", "NaN"),
    *("1e-46", "1e39"),  # out of the range of float32
    *("Infinity", "-Infinity", "9" * 30, "9" * 5000, str(2**63 - 1), str(2**63), '"x"', '""', '"\\ud800"', "[]", "{}"),
    *(
        "[null]",
        "[[]]",
        HALF_PAIR,
        '[{"role": "user"}]',
        '[{"content": "x", "role": null}]',
        "[" * 9000 + "]" * 9000,
        '"\xff"',
    ),
)


@pytest.mark.slow
def test_any_value_is_answered_or_refused_and_never_an_error_of_the_server() -> None:
    app = build_app(tiny_talker(), card={}, limits=Limits(new_tokens=2))
    for field in (*ChatRequest.model_fields, "user"):
        kept = json.dumps({key: kept for key, kept in ask("x", max_tokens=2).items() if key != field})
        bodies = [f'{kept[:-1]}, "{field}": {value}}}'.encode("latin-1") for value in ODD_VALUES]
        for answer in post_all(app, bodies):
            if answer.status_code != 200:
                assert_refused(answer, 404 if "no model" in answer.text else 400, "")


def test_what_cannot_be_read_or_is_not_there_is_refused_in_the_same_form(address: str) -> None:
    with httpx.Client(base_url=address, timeout=60) as client:
        for body in (
            b"",
            b"{",
            b"\xff",
            b"\xef\xbb\xbf{}",
            "{}".encode("utf-16"),
            b"[" * 190_000,
            b"[]",
            b"null",
            b"{}",
        ):
            assert_refused(client.post("/v1/chat/completions", content=body), 400, ":")
        text = {"content-type": "text/plain"}
        assert_refused(client.post("/v1/chat/completions", content=b"{}", headers=text), 415, "application/json")
        for path in ("/nowhere", "/v1/nowhere", "/static/nothing.js", "/static/%00", "/static/..%2fapp.py"):
            assert_refused(client.get(path), 404, "docs/serve.md")
            assert client.get(path).json()["error"]["code"] == "unknown_url"
        for method, path in (("GET", "/v1/chat/completions"), ("DELETE", "/v1/models"), ("BREW", "/")):
            answer = client.request(method, path)
            assert_refused(answer, 405, f"{method} {path} is not allowed here; use {answer.headers['allow']}")
            assert answer.json()["error"]["code"] == "method_not_supported"
        assert_refused(client.post("/static/chat.js"), 405, "use GET, HEAD")
        answer = client.get("/v1/models/gpt-5")
        assert_refused(answer, 404, "no model 'gpt-5'")
        assert answer.json()["error"]["code"] == "model_not_found"


def test_an_error_of_the_server_has_the_same_form() -> None:
    talker = tiny_talker()
    talker.model.tok_emb.weight.data.fill_(float("nan"))
    app = build_app(talker, card={})
    assert_refused(post(app, ask("x")), 500, "logits are no numbers")
    events = post(app, ask("x", stream=True)).text.split("\n\n")
    assert "logits are no numbers" in json.loads(events[-3].removeprefix("data: "))["error"]["message"]


def test_only_this_machine_and_its_own_page_are_answered(address: str) -> None:
    port = address.rpartition(":")[2]
    own = [f"{name}:{port}" for name in ("127.0.0.1", "localhost", "LocalHost", "[::1]")]
    foreign = [
        "rebound.example",
        f"rebound.example:{port}",
        "127.0.0.1",
        "localhost:1",
        f"127.0.0.1:{port}.example",
        "",
    ]
    body = json.dumps(ask("x", max_tokens=1))
    with httpx.Client(base_url=address, timeout=60) as client:

        def asked(**headers: str) -> httpx.Response:
            return client.post("/v1/chat/completions", content=body, headers=headers)

        for host in own:
            assert client.get("/card", headers={"host": host}).status_code == 200
            assert asked(origin=f"http://{host}").status_code == 200
        for host in foreign:
            for path in ("/", "/card", "/v1/models", "/static/chat.js", "/nowhere"):
                assert_refused(client.get(path, headers={"host": host}), 403, f"localhost:{port}")
            assert_refused(asked(host=host), 403, "Host")
            # A form or a plain-text POST from another page is sent without a preflight.
            origin = {"origin": f"http://{host}", "content-type": "text/plain"}
            assert_refused(asked(**origin), 403, "Origin")
        for origin in (
            "null",
            f"https://localhost:{port}",
            f"localhost:{port}",
            "file://",
            f"http://localhost:{port}/",
        ):
            assert_refused(asked(origin=origin), 403, "Origin")
            assert_refused(client.get("/card", headers={"origin": origin}), 403, "Origin")
    assert b" 403 " in received(address, b"GET /card HTTP/1.0\r\n\r\n")
    twice = f"GET /card HTTP/1.1\r\nHost: localhost:{port}\r\nHost: rebound.example\r\n\r\n"
    assert b" 400 " in received(address, twice.encode())


def received(address: str, sent: bytes) -> bytes:
    """Send bytes and return all that comes back until the server closes the connection."""
    with connect(address) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.slow
def test_an_incomplete_request_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "PATIENCE_S", 1)
    with serving(build_app(tiny_talker(), card={}, limits=LIMITS)) as address:
        head, answered = post_head(address, 1000), f"GET /card HTTP/1.1\r\nHost: {address[7:]}\r\n\r\n".encode()
        late = b"the request was incomplete after 1 s"
        sent = {
            b"": b"",
            b"GET / HTTP/1.1\r\nHost: loc": b"",
            head: late,
            head + b"{" * 999: late,
            head.replace(address[7:].encode(), b"rebound.example"): b" 403 ",
            answered: b"requests in progress",
            answered + b"GET /card HT": b"requests in progress",
        }
        with ThreadPoolExecutor(len(sent)) as pool:
            for words, answer in zip(sent.values(), pool.map(partial(received, address), sent), strict=True):
                assert words in answer
        # Sending a byte now and then does not extend the time.
        with connect(address) as dripping:
            dripping.sendall(head)
            came = b""
            while not came:
                dripping.sendall(b" ")
                came = dripping.recv(65536) if select.select([dripping], [], [], 0.05)[0] else b""
            while piece := dripping.recv(65536):  # headers and body may arrive separately
                came += piece
            assert late in came


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_answer(stream: bool) -> None:
    with serving(build_app(tiny_talker(slots=1), card={}, limits=replace(FOR_EVER, queue=1))) as address:
        body = for_ever(stream=stream)
        with connect(address) as connection, connect(address) as waiting:
            for one in (connection, waiting):
                one.sendall(post_head(address, len(body)) + body)
                wait_until(lambda: under_way(address) == 1)
            wait_until(lambda: "niels_gpt_answers_waiting 1.0" in httpx.get(f"{address}/metrics").text)
            busy = httpx.post(f"{address}/v1/chat/completions", content=body, timeout=60)
            assert_refused(busy, 503, "1 requests are queued already; retry in a moment")
            assert int(busy.headers["retry-after"]) > 0
        wait_until(lambda: under_way(address) == 0)
        answer = httpx.post(f"{address}/v1/chat/completions", json=ask("hello"), timeout=60)
        assert answer.json()["choices"][0]["message"]["content"] == expected("hello")


@pytest.mark.slow
def test_a_client_that_stops_reading_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "PATIENCE_S", 1)
    with serving(build_app(tiny_talker(), card={}, limits=FOR_EVER)) as address:
        body = for_ever(stream=True)
        with connect(address) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(post_head(address, len(body)) + body)
            wait_until(lambda: under_way(address) == 1)
            wait_until(lambda: under_way(address) == 0)


def test_shutdown_waits_for_no_client() -> None:
    with ExitStack() as clients:
        with serving(build_app(tiny_talker(), card={}, limits=FOR_EVER)) as address:
            body = for_ever(stream=True)
            sent = [b"", b"GET /", post_head(address, 9), post_head(address, len(body)) + body]
            connections = [clients.enter_context(connect(address)) for _ in sent]
            for connection, data in zip(connections, sent, strict=True):
                connection.sendall(data)
            wait_until(lambda: under_way(address) == 1)
        for connection in connections:
            with suppress(ConnectionError):
                while connection.recv(1 << 20):
                    pass


@pytest.mark.slow
def test_eight_at_once_get_their_own_answers(client: "openai.OpenAI") -> None:
    def one(i: int) -> str | None:
        answer = client.chat.completions.create(**ask(f"number {i}"))  # type: ignore[call-overload]
        content: str | None = answer.choices[0].message.content
        return content

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(8))) == [expected(f"number {i}") for i in range(8)]


@pytest.mark.slow
def test_answers_are_written_together_so_that_short_ones_overtake_long_ones() -> None:
    ended: list[int] = []

    async def work(scheduler: Scheduler) -> None:
        async def one(tokens: int) -> None:
            events = await events_of(scheduler.answer([order(tokens)]))
            assert events[-1].written == tokens
            ended.append(tokens)

        await asyncio.gather(one(300), one(5), one(40))

    scheduled(work)
    assert ended == [5, 40, 300]


def test_a_new_answer_begins_in_the_step_after_the_one_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, asked, step, rows = threading.Event(), threading.Event(), Engine.step, []

    def slow(self: Engine) -> list[Token]:
        under_way.set()
        assert asked.wait(60)
        tokens = step(self)
        rows.append([token.row for token in tokens])
        return tokens

    monkeypatch.setattr(Engine, "step", slow)

    async def work(scheduler: Scheduler) -> None:
        first = scheduler.answer([order(4)])
        await asyncio.to_thread(under_way.wait, 60)
        second = scheduler.answer([order(2)])
        asked.set()
        await asyncio.gather(events_of(first), events_of(second))

    scheduled(work)
    assert rows == [[0], [0, 1], [0, 1], [0]]


@pytest.mark.slow
def test_what_a_step_gave_is_sent_before_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    step, got, seen = Engine.step, [], []
    monkeypatch.setattr(scheduler_module, "_MOMENT_S", 60)

    def counted(self: Engine) -> list[Token]:
        seen.append(len(got))
        return step(self)

    monkeypatch.setattr(Engine, "step", counted)

    async def work(scheduler: Scheduler) -> None:
        async for event in scheduler.answer([order(5)]):
            got.append(event)

    scheduled(work)
    assert seen == [0, 1, 2, 3, 4]


def test_an_event_loop_that_is_busy_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    step, enough, steps = Engine.step, threading.Event(), []

    def counted(self: Engine) -> list[Token]:
        steps.append(1)
        if len(steps) == 5:
            enough.set()
        return step(self)

    monkeypatch.setattr(Engine, "step", counted)

    async def work(scheduler: Scheduler) -> None:
        answer = scheduler.answer([order(5)])
        assert enough.wait(60)  # blocks the event loop meanwhile
        await events_of(answer)

    scheduled(work)


@pytest.mark.slow
def test_more_than_there_are_slots_wait_and_more_than_may_wait_are_refused() -> None:
    async def work(scheduler: Scheduler) -> None:
        first = scheduler.answer([order(400)])
        while not scheduler.under_way:
            await asyncio.sleep(0.01)
        second = scheduler.answer([order(1)])
        with pytest.raises(HTTPException, match="1 requests are queued already"):
            scheduler.answer([order(1)])
        assert [(await events_of(answer))[-1].written for answer in (first, second)] == [400, 1]

    scheduled(work, slots=1, queue=1)


def test_an_error_goes_to_its_own_request_only_and_the_next_is_answered() -> None:
    async def work(scheduler: Scheduler) -> None:
        good, bad = scheduler.answer([order(20)]), scheduler.answer([order(3, logit_bias={10**6: 1.0})])
        with pytest.raises(IndexError):
            await events_of(bad)
        assert (await events_of(good))[-1].written == 20
        assert (await events_of(scheduler.answer([order(3)])))[-1].written == 3

    scheduled(work)


@pytest.mark.slow
def test_many_clients_on_few_slots_are_answered_or_refused_and_never_mixed_up() -> None:
    """Each answer is compared with the one that its client gets alone."""
    talker = tiny_talker(slots=4)
    app = build_app(talker, card={}, limits=Limits(queue=20))

    async def work() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", timeout=60) as inside:
            asked = [inside.post("/v1/chat/completions", json=ask(f"number {i}", max_tokens=5)) for i in range(60)]
            return await asyncio.gather(*asked)

    answers = asyncio.run(work())
    assert {answer.status_code for answer in answers} == {200, 503}
    for i, answer in enumerate(answers):
        if answer.status_code == 200:
            assert answer.json()["choices"][0]["message"]["content"] == expected(f"number {i}", tokens=5)
        else:
            assert int(answer.headers["retry-after"]) > 0


@pytest.mark.slow
def test_requests_leave_nothing_behind(address: str) -> None:
    """The number of live objects does not grow with every round of requests.

    Objects are counted because the counts are the same on every machine; bench.serve measures memory, and for longer.
    A leak grows with every round; what a thread or a cache happens to hold does not.
    """

    def objects_after(count: int) -> int:
        for seed in range(count):
            request = ask("hello", seed=seed, max_tokens=2, stream=bool(seed % 2))
            many.post(f"{address}/v1/chat/completions", json=request).raise_for_status()
        gc.collect()
        return len(gc.get_objects())

    with httpx.Client(timeout=60) as many:
        counts = [objects_after(10), *(objects_after(30) for _ in range(4))]
    assert min(after - before for before, after in pairwise(counts)) < 30
    assert under_way(address) == 0


def test_a_reply_is_sent_at_once_and_not_held_back_for_the_next() -> None:
    """Nagle's algorithm is off: it would wait for an acknowledgement, 40 ms per reply."""
    options: list[int] = []

    async def serve() -> None:
        def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            options.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listening = access.listen(0)
        async with await asyncio.start_server(note, sock=listening):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            await reader.read()
            writer.close()

    asyncio.run(serve())
    assert options == [1]
