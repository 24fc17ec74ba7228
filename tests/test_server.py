"""The web page and the OpenAI form, with a real model, a real client and a real browser."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
import torch

from bench.serve import serving
from niels_gpt.config import ModelConfig
from niels_gpt.generate import Sampling
from niels_gpt.model.gpt import GPT
from niels_gpt.server.app import Limits, build_app
from niels_gpt.server.turns import Busy, Turns
from niels_gpt.talk import Said, Talker
from niels_gpt.tokenizer import ByteTokenizer
from tests.conftest import real_browser

LIMITS = Limits(body_bytes=200_000, new_tokens=400, at_once=12)


def tiny_talker() -> Talker:
    torch.manual_seed(0)
    model = GPT(ModelConfig(V=260, T=64, C=32, L=2, H=2, d_ff=64, dropout=0.0))
    model.tok_emb.weight.data[256:] = 0  # logits of 0 are never among the top 50: it always has something to say
    return Talker("tiny", model, ByteTokenizer(), "chat_tokens")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(build_app(tiny_talker(), card={"parameters": "few"}, limits=LIMITS)) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60)


def ask(content: str, **more: object) -> dict[str, object]:
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 20, "seed": 1, **more}


def expected(content: str, *, tokens: int = 20) -> str:
    talker = tiny_talker()
    said = talker.reply(
        [{"role": "user", "content": content}], sampling=Sampling(0.8, 50), max_new_tokens=tokens, seed=1
    )
    return "".join(piece.text for piece in said)


def test_the_real_client_lists_asks_and_streams(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    whole = client.chat.completions.create(**ask("hello"))  # type: ignore[call-overload]
    assert whole.choices[0].message.content == expected("hello")
    assert whole.usage.prompt_tokens == 8
    assert whole.usage.completion_tokens <= 20
    parts = list(client.chat.completions.create(**ask("hello", stream=True)))  # type: ignore[call-overload]
    assert "".join(part.choices[0].delta.content or "" for part in parts) == expected("hello")
    assert parts[-1].choices[0].finish_reason in ("stop", "length")
    assert len(parts) > 5


def test_what_is_wrong_is_refused_in_a_sentence(client: openai.OpenAI, address: str) -> None:
    for change, error, words in (
        ({"model": "gpt-5"}, openai.NotFoundError, "no model 'gpt-5'"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"messages": [{"role": "bot", "content": "x"}]}, openai.BadRequestError, "role"),
        ({"messages": [{"role": "user", "content": "x" * 300_000}]}, openai.APIStatusError, "larger than 200,000"),
    ):
        with pytest.raises(error, match=words):
            client.chat.completions.create(**{**ask("x"), **change})  # type: ignore[call-overload]

    def endless() -> Iterator[bytes]:
        yield b'{"messages": [{"role": "user", "content": "'
        for _ in range(300):
            yield b"x" * 1000

    answer = httpx.post(
        f"{address}/v1/chat/completions", content=endless(), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413


def test_eight_at_once_get_their_own_answers(client: openai.OpenAI) -> None:
    def one(i: int) -> str | None:
        answer = client.chat.completions.create(**ask(f"number {i}"))  # type: ignore[call-overload]
        content: str | None = answer.choices[0].message.content
        return content

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(8))) == [expected(f"number {i}") for i in range(8)]


def test_a_client_that_leaves_ends_its_answer(address: str) -> None:
    request = json.dumps({**ask("go on"), "max_tokens": 400, "stream": True})
    with httpx.stream("POST", f"{address}/v1/chat/completions", content=request, timeout=30) as answer:
        next(answer.iter_lines())
    deadline = time.monotonic() + 20
    while under_way(address) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert under_way(address) == 0


def under_way(address: str) -> int:
    return int(httpx.get(f"{address}/card").json()["answers under way"])


def test_short_answers_overtake_long_ones() -> None:
    async def work() -> None:
        turns, order = Turns(at_once=2), []

        async def listen(name: str, n: int) -> None:
            async for _ in turns.answer(iter([Said("x", 1)] * n)):
                pass
            order.append(name)

        long = asyncio.create_task(listen("long", 2000))
        await asyncio.sleep(0)
        await listen("short", 3)
        assert order == ["short"]
        await long
        turns.close()

    asyncio.run(work())


def test_too_many_at_once_are_refused() -> None:
    open_gate = threading.Event()

    def waiting() -> Iterator[Said]:
        open_gate.wait(10)
        yield Said("x", 1)

    async def work() -> None:
        turns = Turns(at_once=2)
        first, second = turns.answer(waiting()), turns.answer(waiting())
        with pytest.raises(Busy, match="2 answers are being written"):
            turns.answer(waiting())
        open_gate.set()
        assert [piece.text for answer in (first, second) async for piece in answer] == ["x", "x"]
        turns.close()

    asyncio.run(work())


def test_an_error_belongs_to_who_asked_and_the_next_is_answered() -> None:
    def broken() -> Iterator[Said]:
        yield Said("a", 1)
        raise ValueError("no")

    async def work() -> list[str]:
        turns = Turns(at_once=2)
        with pytest.raises(ValueError, match="no"):
            [piece async for piece in turns.answer(broken())]
        said = [piece.text async for piece in turns.answer(iter([Said("b", 1)]))]
        turns.close()
        return said

    assert asyncio.run(work()) == ["b"]


def test_requests_leave_no_memory_behind(address: str) -> None:
    """A shortened half hour; bench.serve has the long one."""

    def serve_many(count: int) -> float:
        with httpx.Client() as many:
            for seed in range(count):
                request = ask("hello", seed=seed, max_tokens=5)
                many.post(f"{address}/v1/chat/completions", json=request).raise_for_status()
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20

    before = serve_many(60)
    assert serve_many(150) - before < 6
    assert under_way(address) == 0


HOSTILE = '<img src=x onerror="document.title=1"> **bold** \u202eRTL <script>document.title=1</script>'


def test_in_a_browser(address: str) -> None:
    with real_browser() as (browser, expect):
        page = browser.new_page(viewport={"width": 390, "height": 800})
        outside: list[str] = []
        page.on("request", lambda request: None if request.url.startswith(address) else outside.append(request.url))
        page.goto(address)
        expect(page.locator("#card")).to_contain_text("few")
        # Keyboard alone: the field has the focus, Enter sends, Escape stops.
        page.keyboard.type(HOSTILE)
        page.keyboard.press("Enter")
        expect(page.locator("article.user")).to_have_text(HOSTILE)
        expect(page.locator("article.assistant")).not_to_be_empty(timeout=20_000)
        expect(page.locator("#stop")).to_be_disabled(timeout=30_000)
        assert page.title() == "niels_gpt"
        assert page.locator("article img, article script").count() == 0
        page.locator("#settings summary").click()
        page.locator("#max_tokens").fill("400")
        page.locator("#text").fill("x" * 100_000)
        page.keyboard.press("Enter")
        expect(page.locator("#stop")).to_be_enabled()
        page.keyboard.press("Escape")
        expect(page.locator("#stop")).to_be_disabled()
        assert page.locator("article.user").nth(1).inner_text() == "x" * 100_000
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        rendered = page.evaluate(
            "async (text) => { const m = await import('/static/markdown.js'); const e = document.createElement('div');"
            " e.append(m.markdown(text)); return e.innerHTML; }",
            "**b** `c<d>` [l](https://a.b) [x](javascript:alert(1))\n- <img onerror=x>\n```\n<b>\n```",
        )
        assert "<strong>b</strong>" in rendered
        assert "<code>c&lt;d&gt;</code>" in rendered
        assert 'href="https://a.b"' in rendered
        assert 'href="javascript' not in rendered
        assert "<li>&lt;img onerror=x&gt;</li>" in rendered
        page.locator("#reset").click()
        expect(page.locator("article")).to_have_count(0)
        assert outside == []
