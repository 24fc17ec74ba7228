"""Access control (host, origin, size): requests meant for this server, from its own page or from no page at all.

A page of the web that a person here has open can send requests to this machine, too. By itself it may not read the
answers; but once its own name has been pointed at 127.0.0.1 (DNS rebinding), its browser takes this server for its own.
The name then still stands in Host, and the page's address in Origin, which a browser adds to every POST: both must be
this server's. Programs, which no web page steers, send no Origin.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from niels_gpt.talk.server.refusals import refusal

NAMES = ("127.0.0.1", "localhost", "[::1]")


class Gate:
    """Refuses what comes for or from elsewhere, and what is too large; the rest goes on with its whole body read."""

    def __init__(self, app: ASGIApp, *, body_bytes: int) -> None:
        self._app, self._most = app, body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        problem = foreign(scope)
        if problem is not None:
            await refusal(403, problem)(scope, receive, send)
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
                await refusal(413, sentence)(scope, receive, send)
                return
        given = False

        async def whole() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        await self._app(scope, whole, send)


def foreign(scope: Scope) -> str | None:
    """Why a request is not for this server or not from its page; None where all is well."""
    port = scope["server"][1]
    here = {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set())
    hosts, origins = (
        [value.decode("latin-1").lower() for name, value in scope["headers"] if name == wanted]
        for wanted in (b"host", b"origin")
    )
    if len(hosts) != 1 or hosts[0] not in here:
        return f"this server goes by 127.0.0.1:{port} or localhost:{port} alone; the Host of the request is another"
    if not all(origin.removeprefix("http://") in here and origin.startswith("http://") for origin in origins):
        return "web pages of other places are not answered here; the Origin of the request is not this server"
    return None
