"""Access control of the server, its error responses, and its listening socket."""

import asyncio
import hmac
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import uvicorn
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol


def refusal(
    status: int, message: str, *, headers: Mapping[str, str] | None = None, code: str | None = None
) -> JSONResponse:
    """Return an error response in OpenAI's JSON format."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return JSONResponse({"error": error}, status_code=status, headers=headers)


def refuse(request: Request, error: HTTPException) -> JSONResponse:
    """Return the response to an HTTPException, with OpenAI's error codes.

    Errors that a handler raised keep their message; the router's own (404, 405) get a more helpful one.
    """
    status, message, code = error.status_code, error.detail, None
    asked, by_the_router = f"{request.method} {request.url.path[:100]}", message == HTTPStatus(status).phrase
    if status == 404 and not by_the_router:
        code = "model_not_found"
    elif status == 404:
        embeddings = "this model continues text and has no embeddings: choose another server for them in your app"
        why = embeddings if request.url.path.endswith("/embeddings") else "docs/serve.md lists all paths"
        code, message = "unknown_url", f"there is no {asked} here; {why}"
    elif status == 405 and by_the_router:
        allowed = (error.headers or {}).get("Allow", "GET, HEAD")  # older StaticFiles sends no Allow
        code, message = "method_not_supported", f"{asked} is not allowed here; use {allowed}"
    return refusal(status, message, headers=error.headers, code=code)


# Access control by host, origin and API key.
#
# Any web page open in a local browser can send requests to this machine. The same-origin policy hides the responses
# from it, but not after DNS rebinding, when the page's own name resolves to 127.0.0.1. That name is still in Host, and
# the page's address in Origin, which browsers add to every POST, so both must be this server's. Programs other than
# browsers send no Origin. A server reachable from other machines accepts any host name and requires a key instead.

NAMES = ("127.0.0.1", "localhost", "[::1]")
PATIENCE_S = 30  # seconds that the server waits for a client
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_OPEN, _PAGE = ("/", "/health"), ("/static/", "/web/")  # need no key: the page that asks for it


@dataclass(frozen=True)
class Access:
    """Access policy: whether other machines may connect, the API key they must send, and pages of other origins."""

    others: bool = False
    key: str | None = None
    origins: tuple[str, ...] = ()  # in lower case, as browsers send them; pages from there may use the API

    def __post_init__(self) -> None:
        if self.others and self.key is None:
            raise ValueError(
                "a server that other machines can reach needs a key: put one into a file and give --api-key FILE, or "
                "set NIELS_GPT_API_KEY"
            )
        if self.key is not None and not (self.key.isascii() and self.key.isprintable() and self.key.strip()):
            raise ValueError("the API key must be of printable ASCII characters, such as `openssl rand -hex 24` gives")
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"--origin {origin!r} is no origin: give scheme://host or scheme://host:port in lower case and "
                    "nothing after it, such as app://obsidian.md or http://localhost:3000"
                )


class Gate:
    """ASGI middleware that rejects foreign and unauthorized requests; `count` is called with each response's status."""

    def __init__(
        self, app: ASGIApp, *, access: Access | None = None, count: Callable[[int], None] = lambda status: None
    ) -> None:
        self._app, self._access, self._count = app, access or Access(), count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(message["status"])
            await send(message)

        app = self._app
        if scope["type"] == "http":
            try:
                _check_sender(scope, self._access)
            except HTTPException as error:
                app = refusal(error.status_code, error.detail, headers=error.headers)
        await app(scope, receive, counted)


async def read_body(request: Request, *, most: int) -> bytes:
    """Return the body of a request, which must be complete within `PATIENCE_S` and have at most `most` bytes."""
    body = bytearray()
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    sentence = f"larger than {most:,} bytes: send a shorter chat, or begin a new one"
                    raise HTTPException(413, f"the request is {sentence}")
    except TimeoutError as error:
        sentence = f"the request was incomplete after {PATIENCE_S} s: send it again"
        raise HTTPException(408, sentence, headers={"Connection": "close"}) from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the client has left") from error
    return bytes(body)


def _check_sender(scope: Scope, access: Access) -> None:
    """Raise an HTTPException unless a request is meant for this server, from an allowed page, and has the key."""
    port, headers, path = scope["server"][1], Headers(scope=scope), scope["path"]
    here = {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set())
    hosts, origins = ([value.lower() for value in headers.getlist(name)] for name in ("host", "origin"))
    if access.others:  # any host name is accepted; the server's own page then has the same name in Origin
        here = set(hosts)
    if len(hosts) != 1 or hosts[0] not in here:
        raise HTTPException(403, f"the Host header must be 127.0.0.1:{port} or localhost:{port}, its only names")
    if not {f"http://{name}" for name in here}.union(access.origins).issuperset(origins):
        sentence = "requests from web pages of other origins are refused; the Origin header is not this server"
        raise HTTPException(403, f"{sentence}: `niels-gpt serve --origin ORIGIN` allows one")
    if access.key is None or path in _OPEN or path.startswith(_PAGE):
        return
    shown = [value.partition(" ") for value in headers.getlist("authorization")]
    keys = [word.strip().encode("latin-1") for scheme, _, word in shown if scheme.lower() == "bearer"]
    if len(keys) != 1 or not hmac.compare_digest(keys[0], access.key.encode()):  # in constant time
        sentence = "this server needs an API key: send `Authorization: Bearer KEY`"
        raise HTTPException(401, sentence, headers={"WWW-Authenticate": "Bearer"})


def listen(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Return a listening TCP socket (port 0: a free one); from now on browsers wait instead of being refused."""
    # Of a socket without this protocol number asyncio leaves Nagle's algorithm on: each reply would wait 40 ms.
    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        what = f"port {port} at {host} is not available ({error.strerror})"
        raise ValueError(f"{what}: choose another with --port or --host") from error
    return listening


def make_server(app: ASGIApp) -> uvicorn.Server:
    """Return a uvicorn server; a connection without a request, or with none after its last, ends after PATIENCE_S."""
    return uvicorn.Server(
        uvicorn.Config(app, http=Connection, ws="none", timeout_keep_alive=PATIENCE_S, log_level="warning")
    )


class Connection(H11Protocol):
    """uvicorn's connection, which waits forever neither for its first request nor for a client that does not read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting = self.loop.call_later(PATIENCE_S, lambda: None if self.cycle else transport.abort())

    def pause_writing(self) -> None:
        super().pause_writing()
        self._waiting.cancel()
        self._waiting = self.loop.call_later(PATIENCE_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._waiting.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection at once, so that open requests do not delay the end of the server."""
        self.transport.abort()
