"""Tests of pages of other origins, also in a real browser: they are refused unless `--origin` names theirs."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from niels_gpt.talk.server.access import Access
from niels_gpt.talk.server.app import build_app
from tests.conftest import real_browser
from tests.servers import assert_refused, serving, tiny_talker

KEY = {"Authorization": "Bearer k", "X-Stainless-Lang": "js"}  # OpenAI's client sends such headers
FETCH = """async ([address, headers, credentials]) => {
    const body = JSON.stringify({messages: [{role: "user", content: "x"}], max_tokens: 3});
    headers = {...headers, "Content-Type": "application/json"};
    try {
        const answer = await fetch(address + "/v1/chat/completions", {method: "POST", headers, credentials, body});
        const found = await answer.json();
        return [answer.status, found.choices?.length ?? found.error.message];
    } catch (error) { return [0, String(error)]; }
}"""


class Recorded:
    """The server's application, which records the methods of the requests that reach it."""

    def __init__(self, access: Access) -> None:
        self.methods: list[str] = []
        self._app = build_app(tiny_talker(), card={}, access=access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.methods += [scope["method"]] if scope["type"] == "http" else []
        await self._app(scope, receive, send)


@pytest.fixture
def origins() -> Iterator[tuple[str, str]]:
    """Serve a page at two origins that are not the server's, each with its own port."""
    page = Starlette(routes=[Route("/", lambda request: HTMLResponse("<title>another app</title>"))])
    with ExitStack() as stack:
        yield stack.enter_context(serving(page)), stack.enter_context(serving(page))


@pytest.mark.slow
def test_a_page_of_another_origin_in_a_browser(origins: tuple[str, str]) -> None:
    allowed, third = origins
    without, with_it = Recorded(Access(key="k")), Recorded(Access(key="k", origins=(allowed,)))
    with real_browser() as (browser, _), serving(without) as closed, serving(with_it) as opened:

        def fetched(origin: str, address: str, headers: dict[str, str], credentials: str = "same-origin") -> Any:
            page = pages[origin]
            return page.evaluate(FETCH, [address, headers, credentials])

        context = browser.new_context()
        pages = {origin: context.new_page() for origin in origins}
        for origin, page in pages.items():
            page.goto(origin)
        assert fetched(allowed, closed, KEY)[0] == 0
        assert fetched(allowed, opened, KEY) == [200, 1]
        assert with_it.methods == ["OPTIONS", "POST"]
        assert fetched(allowed, opened, KEY) == [200, 1]
        assert with_it.methods == ["OPTIONS", "POST", "POST"]  # the browser has cached the preflight
        status, why = fetched(allowed, opened, {**KEY, "Authorization": "Bearer other"})
        assert (status, "needs an API key" in why) == (401, True)  # the page can read why
        assert fetched(allowed, opened, KEY, "include")[0] == 0  # credentials are never allowed
        assert fetched(third, opened, KEY)[0] == 0
        assert without.methods == ["OPTIONS"]


@pytest.mark.slow
def test_preflights_are_answered_for_allowed_origins_only() -> None:
    obsidian = "app://obsidian.md"
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-any"}
    with serving(Recorded(Access(key="k", origins=(obsidian,)))) as address:
        chat = f"{address}/v1/chat/completions"
        answer = httpx.options(chat, headers={**asked, "origin": obsidian})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == obsidian
        assert answer.headers["access-control-max-age"] == "3600"
        assert "x-any" in answer.headers["access-control-allow-headers"]
        assert "Origin" in answer.headers["vary"]
        for origin in ("app://obsidian.md.example", "https://obsidian.md", "null", "app://obsidian.md/"):
            answer = httpx.options(chat, headers={**asked, "origin": origin})
            assert answer.status_code == 400
            assert "access-control-allow-origin" not in answer.headers
            assert_refused(httpx.get(f"{address}/v1/models", headers={**KEY, "origin": origin}), 403, "--origin")
        answer = httpx.get(f"{address}/v1/models", headers={**KEY, "origin": obsidian})
        assert answer.headers["access-control-allow-origin"] == obsidian
        assert not {name for name in answer.headers if "credentials" in name}
        rebound = {**KEY, "origin": obsidian, "host": "rebound.example"}
        assert_refused(httpx.get(f"{address}/v1/models", headers=rebound), 403, "Host")


@pytest.mark.parametrize("origin", ["*", "null", "localhost:3000", "http://a.example/", "http://A.example", "http://"])
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="is no origin: give scheme://host"):
        Access(origins=(origin,))


def test_embeddings_are_refused_with_the_reason() -> None:
    with serving(build_app(tiny_talker(), card={})) as address:
        answer = httpx.post(f"{address}/v1/embeddings", json={"model": "tiny", "input": "text"})
        assert_refused(answer, 404, "has no embeddings")
