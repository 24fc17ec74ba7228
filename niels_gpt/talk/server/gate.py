"""Access control (host, origin, API key, size): requests meant for this server, from its own page or from no page.

A page of the web that a person here has open can send requests to this machine, too. By itself it may not read the
answers; but once its own name has been pointed at 127.0.0.1 (DNS rebinding), its browser takes this server for its own.
The name then still stands in Host, and the page's address in Origin, which a browser adds to every POST: both must be
this server's. Programs, which no web page steers, send no Origin. A server that other machines may reach goes by any
name, and asks for a key instead.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from niels_gpt.talk.server.refusals import refusal

NAMES = ("127.0.0.1", "localhost", "[::1]")
_OPEN, _PAGE = ("/", "/health"), ("/static/", "/web/")  # without a key: the page that asks for it


@dataclass(frozen=True)
class Access:
    """Who is answered: this machine alone or others, too, and whether they have to show a key."""

    others: bool = False
    key: str | None = None

    def __post_init__(self) -> None:
        if self.others and self.key is None:
            raise ValueError(
                "a server that other machines can reach needs a key: put one into a file and give --api-key FILE, or "
                "set NIELS_GPT_API_KEY"
            )
        if self.key is not None and not (self.key.isascii() and self.key.isprintable() and self.key.strip()):
            raise ValueError("the API key must be of printable ASCII characters, such as `openssl rand -hex 24` gives")


class Gate:
    """Refuses what comes for or from elsewhere, and what is too large; the rest goes on with its whole body read."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        body_bytes: int,
        access: Access | None = None,
        count: Callable[[int], None] = lambda status: None,
    ) -> None:
        self._app, self._most, self._access, self._count = app, body_bytes, access or Access(), count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        begun = False

        async def counted(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._count(message["status"])
            await send(message)

        problem = foreign(scope, self._access)
        if problem is not None:
            await refusal(403, problem)(scope, receive, counted)
            return
        if not _has_key(scope, self._access.key):
            sentence = "this server asks for a key: send `Authorization: Bearer KEY`"
            await refusal(401, sentence, headers={"WWW-Authenticate": "Bearer"})(scope, receive, counted)
            return
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._most:
                sentence = f"the request is larger than {self._most:,} bytes: send a shorter chat, or begin a new one"
                await refusal(413, sentence)(scope, receive, counted)
                return
        given = False

        async def whole() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        try:
            await self._app(scope, whole, counted)
        except Exception:
            if not begun:  # Starlette answers with status 500, but outside of all middleware
                self._count(500)
            raise


def foreign(scope: Scope, access: Access) -> str | None:
    """Why a request is not for this server or not from its page; None where all is well."""
    port = scope["server"][1]
    here = {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set())
    hosts, origins = (_values(scope, name) for name in (b"host", b"origin"))
    if access.others:  # by whatever name they know it; a page of its own has that name in Origin, too
        here = set(hosts)
    if len(hosts) != 1 or hosts[0] not in here:
        return f"this server goes by 127.0.0.1:{port} or localhost:{port} alone; the Host of the request is another"
    if not all(origin.removeprefix("http://") in here and origin.startswith("http://") for origin in origins):
        return "web pages of other places are not answered here; the Origin of the request is not this server"
    return None


def _has_key(scope: Scope, key: str | None) -> bool:
    path = scope["path"]
    if key is None or path in _OPEN or path.startswith(_PAGE):
        return True
    shown = [value.partition(" ") for value in _values(scope, b"authorization", lower=False)]
    keys = [word.strip() for scheme, _, word in shown if scheme.lower() == "bearer"]
    return len(keys) == 1 and hmac.compare_digest(keys[0].encode("latin-1"), key.encode())


def _values(scope: Scope, wanted: bytes, *, lower: bool = True) -> list[str]:
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
    return [value.lower() for value in values] if lower else values
