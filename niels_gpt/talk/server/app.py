"""HTTP application: the chat page and an OpenAI-compatible API, with whole or streamed (SSE) replies."""

import asyncio
import gc
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic_core import to_json as to_json_bytes
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from niels_gpt.report.page import WEB
from niels_gpt.rng import derive_seed
from niels_gpt.talk.notes import Notes, Sources, abilities, with_sections
from niels_gpt.talk.server.access import Access, Gate, read_body, refusal, refuse
from niels_gpt.talk.server.scheduler import Answer, Order, Scheduler
from niels_gpt.talk.server.schema import (
    Asked,
    Body,
    ChatReply,
    ChatRequest,
    CompletionReply,
    CompletionRequest,
    Reply,
    TokenizeRequest,
    parse_request,
)
from niels_gpt.talk.talker import Talker, TextChunk
from niels_gpt.trace.library import to_json


class Stream(StreamingResponse):
    """Reply sent as server-sent events; when it ends, even before it began, generation stops."""

    def __init__(self, reply: Reply, answer: Answer, *, usage: bool) -> None:
        super().__init__(_events(reply, answer, usage=usage), media_type="text/event-stream")
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.leave()


async def _events(reply: Reply, answer: Answer, *, usage: bool) -> AsyncIterator[str]:
    """Yield the server-sent events of a reply, ending with `[DONE]`; `usage` adds token counts."""
    none_yet = {"usage": None} if usage else {}
    chunks = [TextChunk()] * answer.choices
    if reply.sources and (first := reply.sources.first()):
        yield reply.part([], **none_yet, niels_gpt=first)
    for n in range(answer.choices) if reply.opening else ():
        yield reply.part([{"index": n, **reply.opening, "logprobs": None, "finish_reason": None}], **none_yet)
    try:
        async for n, chunk in answer:
            chunks[n] += replace(chunk, tokens=())
            if chunk.text or chunk.tokens:
                yield reply.part([reply.choice(n, TextChunk(chunk.text, chunk.tokens))], **none_yet)
            if chunk.finish:
                yield reply.part([reply.choice(n, TextChunk(finish=chunk.finish))], **none_yet)
        if usage:
            yield reply.part([], usage=reply.usage(chunks))
        if reply.sources:
            texts = [chunk.text for chunk in chunks]
            yield reply.part([], niels_gpt=await asyncio.to_thread(reply.sources.last, texts))
    except Exception as error:  # status 200 is already sent, so the error goes into the stream
        yield f"data: {bytes(refusal(500, str(error)).body).decode()}\n\n"
    yield "data: [DONE]\n\n"


async def whole_reply(reply: Reply, answer: Answer, request: Request) -> dict[str, Any]:
    """Return the complete reply, or what was generated until the client disconnected."""
    chunks = [TextChunk()] * answer.choices
    watch = asyncio.create_task(_leave_with_client(request, answer))
    try:
        async for n, chunk in answer:
            chunks[n] += chunk
    except ClientDisconnect:
        pass
    finally:
        watch.cancel()
        answer.leave()
    body = reply.whole(chunks)
    if reply.sources:
        body["niels_gpt"] = await asyncio.to_thread(reply.sources.last, [chunk.text for chunk in chunks])
    return body


async def _leave_with_client(request: Request, answer: Answer) -> None:
    """End the reply when the client disconnects, even while it waits for a slot."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    answer.queue.put_nowait(ClientDisconnect())


# Bodies up to this size take a few ms at worst and are prepared on the event loop, so that generation starts with the
# next step; larger ones go to a thread.
_SMALL_BYTES = 4096
_MOST_FOUND = 50  # sections that a search may ask for
Prepared = TypeVar("Prepared")
_Job = tuple[Asked, Reply, list[Order]]  # one order per choice


@dataclass(frozen=True)
class Limits:
    """Limits of one request (bytes, tokens), and how many choices may wait for a slot."""

    body_bytes: int = 1 << 20
    new_tokens: int = 1024
    queue: int = 64  # also the most choices that one request may ask for


class Service:
    """Handlers of the endpoints that need the model or the notes."""

    def __init__(self, talker: Talker, scheduler: Scheduler, limits: Limits, notes: Notes | None) -> None:
        self._talker, self._scheduler, self._limits, self._notes = talker, scheduler, limits, notes
        self._turn = asyncio.Lock()

    def find(self, request: Request, q: str = "", limit: str = "5") -> dict[str, Any]:
        """Handle `GET /v1/find?q=WORDS&limit=5`."""
        assert self._notes is not None
        if not (re.fullmatch("[0-9]{1,9}", limit) and 1 <= int(limit) <= _MOST_FOUND):
            raise HTTPException(400, f"limit: it must be an integer from 1 to {_MOST_FOUND}")
        found = self._notes.library.find(q, limit=int(limit), sources=self._notes.sources)
        return {"object": "list", "data": [to_json(section, with_path=_is_here(request)) for section in found]}

    def check_name(self, name: str) -> None:
        """Raise a 404 error if `name` is not the served model."""
        if name != self._talker.name:
            raise HTTPException(404, f"there is no model {name[:100]!r} here; this server has {self._talker.name!r}")

    async def answered(self, prepare: Callable[[bytes], _Job], request: Request) -> Response:
        """Answer a request, of whose body `prepare` (`chat` or `completion`) makes orders."""
        self._scheduler.check_room()  # before parsing: a request that is rejected anyway should cost nothing
        asked, reply, orders = await self.prepared(prepare, request)
        answer = self._scheduler.answer(orders)
        self._scheduler.metrics.prompt_tokens.inc(reply.prompt_tokens)
        if reply.sources:
            reply.sources.with_path = _is_here(request)
        if asked.stream:
            return Stream(reply, answer, usage=asked.stream_options.include_usage)
        return JSONResponse(await whole_reply(reply, answer, request))

    async def prepared(self, prepare: Callable[[bytes], Prepared], request: Request) -> Prepared:
        """Run `prepare` on the request body: if it is large, in a thread and one at a time.

        The parsed objects take many times the size of the body. A client that left while it waited is skipped.
        """
        content = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if content != "application/json":
            raise HTTPException(415, f"the content type is {content[:100]!r}: send `content-type: application/json`")
        body = await read_body(request, most=self._limits.body_bytes)
        try:
            if len(body) <= _SMALL_BYTES:
                return prepare(body)
            async with self._turn:
                if await request.is_disconnected():
                    raise HTTPException(400, "the client has left")
                return await asyncio.to_thread(prepare, body)
        except ValueError as error:
            raise HTTPException(400, str(error)) from error

    def _parsed(self, kind: type[Body], body: bytes) -> Body:
        asked = parse_request(kind, body)
        if asked.model is not None:
            self.check_name(asked.model)
        return asked

    def tokenized(self, body: bytes) -> Response:
        """Return the reply to `POST /tokenize`."""
        asked = self._parsed(TokenizeRequest, body)
        messages = [message.model_dump() for message in asked.messages]
        ids = self._talker.chat.prompt(messages) if messages else self._talker.tokenizer.encode(asked.prompt or "")
        found = {"count": len(ids), "max_model_len": self._talker.model.cfg.T, "tokens": ids}
        # json.dumps holds the GIL for 0.1 s per megabyte of text, and no other client is served meanwhile.
        return Response(to_json_bytes(found), media_type="application/json")

    def chat(self, body: bytes) -> _Job:
        """Return what `POST /v1/chat/completions` asks for."""
        asked, talker, limit = self._parsed(ChatRequest, body), self._talker, self._limits.new_tokens
        said: Sequence[Mapping[str, str]] = [message.model_dump() for message in asked.messages]
        sources = self._sources(asked, said[-1]["content"])
        if sources and sources.found:
            said = with_sections(talker, said, sources.found)
        most = min(asked.max_completion_tokens or asked.max_tokens or limit, limit)
        messages, forgotten = talker.remember(said, max_new_tokens=most)
        prompt = talker.chat.prompt(messages)
        cut = talker.beyond(prompt)
        order = Order(
            prompt[cut:],
            asked.sampling(V=talker.model.cfg.V),
            most,
            stops=(*asked.stop, *talker.chat.stop_texts),
            top_logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
        )
        dropped = {"forgotten_messages": forgotten, "cut_tokens": cut}
        more = {name: count for name, count in dropped.items() if count}
        reply = ChatReply(talker, logprobs=asked.logprobs, prompt_tokens=len(order.prompt), sources=sources, **more)
        return asked, reply, [replace(order, seed=seed) for seed in _seeds(asked, reply)]

    def completion(self, body: bytes) -> _Job:
        """Return what `POST /v1/completions` asks for."""
        asked, talker, limit = self._parsed(CompletionRequest, body), self._talker, self._limits.new_tokens
        prompts, choices, queue = len(asked.prompt), len(asked.prompt) * asked.n, self._limits.queue
        if choices > queue:
            raise ValueError(
                f"{prompts:,} prompts with n={asked.n} are {choices:,} choices, more than the maximum of {queue} per "
                "request: send fewer at a time"
            )
        sampling = asked.sampling(V=talker.model.cfg.V)
        most = limit if asked.max_tokens is None else min(asked.max_tokens, limit)
        orders = [
            Order(self._ids(prompt), sampling, most, stops=asked.stop, top_logprobs=asked.logprobs, echo=asked.echo)
            for prompt in asked.prompt
        ]
        prompt_tokens, wanted = sum(len(order.prompt) for order in orders), asked.logprobs is not None
        sources = self._sources(asked, None)
        reply = CompletionReply(talker, logprobs=wanted, prompt_tokens=prompt_tokens, sources=sources)
        return asked, reply, [replace(order, seed=seed) for order in orders for seed in _seeds(asked, reply)]

    def _sources(self, asked: Asked, question: str | None) -> Sources | None:
        """Return the sources asked for, None if none are; without a question no sections are looked for."""
        trace, notes = asked.niels_gpt.trace, asked.niels_gpt.notes
        if not (trace or notes):
            return None
        if self._notes is None:
            raise ValueError("niels_gpt: this server has no index of documents: leave the field out")
        return Sources(self._notes, trace, None if question is None or not notes else self._notes.find(question))

    def _ids(self, prompt: str | list[int]) -> list[int]:
        """Return the ids of a prompt. Unlike a chat, a prompt longer than the context is an error and not truncated."""
        cfg = self._talker.model.cfg
        if isinstance(prompt, str) and len(prompt) > cfg.T * self._talker.longest_token:
            raise ValueError(f"prompt: its {len(prompt):,} characters do not fit the context of {cfg.T} tokens")
        ids = self._talker.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        if not ids:
            raise ValueError("prompt: it is empty; send at least one character")
        if len(ids) > cfg.T:
            raise ValueError(f"prompt: its {len(ids)} tokens do not fit the context of {cfg.T}: send a shorter one")
        if not all(0 <= id < cfg.V for id in ids):
            raise ValueError(f"prompt: token ids are 0 to {cfg.V - 1}")
        return ids


def _seeds(asked: Asked, reply: Reply) -> list[int]:
    """Return the seeds of a prompt's choices, derived from the first one's."""
    first = derive_seed(0, reply.id) if asked.seed is None else asked.seed
    return [first, *(derive_seed(first, "choice", n) for n in range(1, asked.n))]


def _is_here(request: Request) -> bool:
    return request.client is not None and request.client.host in ("127.0.0.1", "::1")


STATIC = Path(__file__).with_name("static")


def build_app(
    talker: Talker,
    *,
    card: dict[str, Any],
    limits: Limits | None = None,
    access: Access | None = None,
    notes: Notes | None = None,
    about: Mapping[str, Any] | None = None,
) -> FastAPI:
    """Return the FastAPI application that serves `talker`; `card` is what the page shows about the model.

    All text in `notes` may be sent to any client. `about` is what the page begins with: name, trained_on, temperature.
    """
    limits = limits or Limits()
    scheduler = Scheduler(talker, queue=limits.queue)
    service = Service(talker, scheduler, limits, notes)
    entry: dict[str, Any] = {"id": talker.name, "object": "model", "created": 0, "owned_by": "niels_gpt"}
    entry["max_model_len"] = talker.model.cfg.T  # the context length, under the name other servers use
    entry["niels_gpt"] = {**abilities(notes, talker), **(about or {})}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # Exclude the objects that exist at startup from garbage collection. Otherwise each full collection that a large
        # request triggers scans them for 0.2 s, during which no thread runs.
        gc.collect()
        gc.freeze()
        yield
        scheduler.close()

    app = FastAPI(title="niels_gpt", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    def count(status: int) -> None:
        scheduler.metrics.requests.labels(str(status)).inc()

    def fail(_: Request, error: Exception) -> Response:
        # Sent outside of all middleware. uvicorn then closes the connection, of which the client must know.
        count(500)
        return refusal(500, f"internal error: {error!r}", headers={"Connection": "close"})

    app.add_middleware(Gate, access=access, count=count)
    if access and access.origins:
        # Outermost, as a preflight carries no key and a page must be able to read why it was refused. Credentials
        # (cookies) are never allowed; any header is, since OpenAI's client sends a dozen.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            allow_private_network=True,
            max_age=3600,  # seconds that a browser may remember a preflight
        )
    # Starlette's class, the base of FastAPI's: the router raises it for unknown paths and methods.
    app.add_exception_handler(AnyHTTPException, refuse)  # type: ignore[arg-type]  # takes HTTPException only
    app.add_exception_handler(Exception, fail)

    def model(name: str) -> dict[str, Any]:
        service.check_name(name)
        return entry

    app.get("/")(lambda: FileResponse(STATIC / "index.html"))
    app.get("/card")(lambda: {**card, "requests in progress": len(scheduler.under_way)})
    app.get("/health")(lambda: {"status": "ok"})
    app.get("/metrics")(lambda: Response(generate_latest(scheduler.metrics.registry), media_type=CONTENT_TYPE_LATEST))
    app.get("/v1/models")(lambda: {"object": "list", "data": [entry]})
    app.get("/v1/models/{name:path}")(model)
    if notes is not None:
        app.get("/v1/find")(service.find)
    app.post("/tokenize", response_model=None)(partial(service.prepared, service.tokenized))
    app.post("/v1/chat/completions")(partial(service.answered, service.chat))
    app.post("/v1/completions")(partial(service.answered, service.completion))
    for name, folder in {"static": STATIC, "web": WEB}.items():
        app.mount(f"/{name}", StaticFiles(directory=folder), name=name)
    return app
