"""HTTP application: the chat page and an OpenAI-compatible API, with whole or streamed (SSE) replies."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from pydantic_core import to_json
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from niels_gpt.inference.sampling import Sampling
from niels_gpt.report.page import WEB
from niels_gpt.rng import derive_seed
from niels_gpt.talk.notes import Notes
from niels_gpt.talk.server.access import Access, guard, refusal, refusal_body, refuse
from niels_gpt.talk.server.scheduler import Answer, Busy, Event, Metrics, Order, Scheduler
from niels_gpt.talk.server.schema import (
    Asked,
    Body,
    ChatForm,
    ChatRequest,
    CompletionForm,
    CompletionRequest,
    Form,
    Reply,
    TokenizeRequest,
    parse_request,
)
from niels_gpt.talk.server.sources import About, abilities, ask_about, finder
from niels_gpt.talk.talker import Talker, TextChunk


class Stream(StreamingResponse):
    """Reply sent as server-sent events; when it ends, even before it began, generation stops."""

    def __init__(self, reply: Reply, answer: Answer, metrics: Metrics, *, usage: bool, about: About | None) -> None:
        events = _events(reply, metrics.timed(answer), answer.choices, usage, about)
        super().__init__(events, media_type="text/event-stream")
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.leave()


async def _events(
    reply: Reply, events: AsyncIterator[Event], choices: int, usage: bool, about: About | None
) -> AsyncIterator[str]:
    """Yield the server-sent events of a reply, ending with `[DONE]`; `usage` adds token counts, `about` sources."""
    none_yet = {"usage": None} if usage else {}
    texts = [""] * choices
    if about and (first := about.first()):
        yield reply.part([], **none_yet, niels_gpt=first)
    for index in range(choices):
        if (opening := reply.form.opening(index)) is not None:
            yield reply.part([opening], **none_yet)
    try:
        async for event in events:
            reply.written += event.written
            texts[event.choice] += event.piece.text
            if event.finish is None:
                yield reply.part([reply.form.delta(event.choice, event.piece, None)], **none_yet)
                continue
            if event.piece.text or event.piece.tokens:
                yield reply.part([reply.form.delta(event.choice, event.piece, None)], **none_yet)
            yield reply.part([reply.form.delta(event.choice, TextChunk(), event.finish)], **none_yet)
        if usage:
            yield reply.part([], usage=reply.usage)
        if about:
            yield reply.part([], niels_gpt=await asyncio.to_thread(about.last, texts))
    except Exception as error:  # status 200 is already sent, so the error goes into the stream
        yield f"data: {json.dumps(refusal_body(500, str(error)))}\n\n"
    yield "data: [DONE]\n\n"


async def whole_reply(
    reply: Reply, answer: Answer, metrics: Metrics, request: Request, about: About | None = None
) -> dict[str, Any]:
    """Return the complete reply, or what was generated until the client disconnected."""
    pieces: list[list[TextChunk]] = [[] for _ in range(answer.choices)]
    finish = ["length"] * answer.choices
    watch = asyncio.create_task(_leave_with_client(request, answer))
    try:
        async for event in metrics.timed(answer):
            pieces[event.choice].append(event.piece)
            reply.written += event.written
            finish[event.choice] = event.finish or finish[event.choice]
    except ClientDisconnect:
        pass
    finally:
        watch.cancel()
        answer.leave()
    joined = [
        TextChunk("".join(piece.text for piece in said), tuple(token for piece in said for token in piece.tokens))
        for said in pieces
    ]
    body = reply.whole([reply.form.choice(n, piece, finish[n]) for n, piece in enumerate(joined)])
    told = await asyncio.to_thread(about.last, [piece.text for piece in joined]) if about else None
    return body if told is None else {**body, "niels_gpt": told}


async def _leave_with_client(request: Request, answer: Answer) -> None:
    """Cancel the answer when the client disconnects, even while it waits for a slot."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    answer.leave()
    answer.queue.put_nowait(ClientDisconnect())


RETRY_AFTER_S = 2
# Bodies up to this size take a few ms at worst and are prepared on the event loop, so that generation starts with the
# next step; larger ones go to a thread.
_SMALL_BYTES = 4096
Prepared = TypeVar("Prepared")


@dataclass(frozen=True)
class Limits:
    """Limits of one request (bytes, tokens), and how many choices may wait for a slot."""

    body_bytes: int = 1 << 20
    new_tokens: int = 1024
    queue: int = 64  # also the most choices that one request may ask for


@dataclass(frozen=True)
class _Job:
    """Parsed request: one order per choice, and how the reply is to be sent."""

    orders: list[Order]
    reply: Reply
    stream: bool
    usage: bool
    about: About | None


class Service:
    """Handlers of the POST endpoints for one model."""

    def __init__(
        self, talker: Talker, scheduler: Scheduler, metrics: Metrics, limits: Limits, notes: Notes | None = None
    ) -> None:
        self._talker, self._scheduler, self._metrics, self._limits = talker, scheduler, metrics, limits
        self._notes = notes
        self._turn = asyncio.Lock()

    async def tokenize(self, request: Request) -> Response:
        """Handle `POST /tokenize`."""
        return await self._prepared(request, self._tokenized)

    async def chat(self, request: Request) -> Response:
        """Handle `POST /v1/chat/completions`."""
        return await self._answered(request, self._chat_job)

    async def complete(self, request: Request) -> Response:
        """Handle `POST /v1/completions`."""
        return await self._answered(request, self._completion_job)

    def check_name(self, name: str) -> None:
        """Raise a 404 error if `name` is not the served model."""
        if name != self._talker.name:
            raise HTTPException(404, f"there is no model {name[:100]!r} here; this server has {self._talker.name!r}")

    async def _answered(self, request: Request, prepare: Callable[[bytes], _Job]) -> Response:
        try:
            self._scheduler.check_room()  # before parsing: a request that is rejected anyway should cost nothing
            asked = await self._prepared(request, prepare)
            answer = self._scheduler.answer(asked.orders)
        except Busy as error:
            raise HTTPException(503, str(error), headers={"Retry-After": str(RETRY_AFTER_S)}) from error
        self._metrics.count_prompt(asked.reply.prompt_tokens)
        about = asked.about and asked.about.for_client(request)
        if asked.stream:
            return Stream(asked.reply, answer, self._metrics, usage=asked.usage, about=about)
        return JSONResponse(await whole_reply(asked.reply, answer, self._metrics, request, about))

    async def _prepared(self, request: Request, prepare: Callable[[bytes], Prepared]) -> Prepared:
        """Run `prepare` on the request body, in a thread if the body is large.

        Large bodies are prepared one at a time, since the parsed objects take many times the size of the body. A client
        that disconnected while it waited for its turn is skipped.
        """
        content = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if content != "application/json":
            raise HTTPException(415, f"the content type is {content[:100]!r}: send `content-type: application/json`")
        body = await request.body()
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

    def _tokenized(self, body: bytes) -> Response:
        asked = self._parsed(TokenizeRequest, body)
        messages = [message.model_dump() for message in asked.messages]
        ids = self._talker.prompt(messages) if messages else self._talker.tokenizer.encode(asked.prompt or "")
        found = {"count": len(ids), "max_model_len": self._talker.model.cfg.T, "tokens": ids}
        # json.dumps holds the GIL for 0.1 s per megabyte of text, and no other client is served meanwhile.
        return Response(to_json(found), media_type="application/json")

    def _chat_job(self, body: bytes) -> _Job:
        asked = self._parsed(ChatRequest, body)
        self._check_choices(asked.n)
        most = min(asked.max_completion_tokens or asked.max_tokens or self._limits.new_tokens, self._limits.new_tokens)
        about, said = ask_about(
            self._notes, asked.niels_gpt, self._talker, [message.model_dump() for message in asked.messages]
        )
        messages, forgotten = self._talker.remember(said, max_new_tokens=most)
        prompt = self._talker.prompt(messages)
        cut = self._talker.beyond(prompt)
        dropped = {"forgotten_messages": forgotten, "cut_tokens": cut}
        return self._job(
            asked,
            ChatForm(self._talker.tokenizer, logprobs=asked.logprobs),
            prompts=[prompt[cut:]],
            most=most,
            stops=(*asked.stops, *self._talker.stops),
            top_logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
            more={name: count for name, count in dropped.items() if count},
            about=about,
        )

    def _completion_job(self, body: bytes) -> _Job:
        asked = self._parsed(CompletionRequest, body)
        prompts = _each(asked.prompt)
        self._check_choices(asked.n, prompts=len(prompts))
        return self._job(
            asked,
            CompletionForm(self._talker.tokenizer, logprobs=asked.logprobs is not None),
            prompts=[self._ids(prompt) for prompt in prompts],
            most=min(
                self._limits.new_tokens if asked.max_tokens is None else asked.max_tokens, self._limits.new_tokens
            ),
            stops=asked.stops,
            echo=asked.echo,
            top_logprobs=asked.logprobs,
            more={},
            about=ask_about(self._notes, asked.niels_gpt, self._talker, [])[0],
        )

    def _check_choices(self, n: int, *, prompts: int = 1) -> None:
        if n * prompts > self._limits.queue:
            raise ValueError(
                f"{prompts:,} prompts with n={n} are {n * prompts:,} choices, more than the maximum of "
                f"{self._limits.queue} per request: send fewer at a time"
            )

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

    def _sampling(self, asked: Asked) -> Sampling:
        sampling, V = asked.sampling(), self._talker.model.cfg.V
        foreign = [token for token in sampling.logit_bias if token >= V]
        if foreign:
            raise ValueError(f"logit_bias: there is no token {foreign[0]}; token ids are 0 to {V - 1}")
        return sampling

    def _job(
        self,
        asked: Asked,
        form: Form,
        *,
        prompts: Sequence[Sequence[int]],
        most: int,
        stops: tuple[str, ...],
        top_logprobs: int | None,
        more: Mapping[str, Any],
        about: About | None,
        echo: bool = False,
    ) -> _Job:
        reply = Reply(form, self._talker.name, prompt_tokens=sum(map(len, prompts)), more=more)
        sampling, seed = self._sampling(asked), derive_seed(0, reply.id) if asked.seed is None else asked.seed
        orders = [
            Order(prompt, sampling, derive_seed(seed, "choice", n) if n else seed, most, stops, top_logprobs, echo)
            for prompt in prompts
            for n in range(asked.n)
        ]
        return _Job(orders, reply, asked.stream, asked.stream_options.include_usage, about)


def _each(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """Return the prompts as a list; a flat list of ids is one prompt."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [one for one in prompt if isinstance(one, int)]
    return [one for one in prompt if not isinstance(one, int)] or [ids]


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
    scheduler = Scheduler(talker.engine, talker.tokenizer, slots=talker.slots, queue=limits.queue)
    metrics = Metrics(scheduler)
    service = Service(talker, scheduler, metrics, limits, notes)
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
    guard(app, body_bytes=limits.body_bytes, access=access, count=metrics.count_request)
    # Starlette's class, the base of FastAPI's: the router raises it for unknown paths and methods.
    app.add_exception_handler(AnyHTTPException, refuse)  # type: ignore[arg-type]  # takes HTTPException only
    # uvicorn closes the connection after an error: a client must know, or its next request meets a reset.
    close = {"Connection": "close"}
    app.add_exception_handler(Exception, lambda _, error: refusal(500, f"internal error: {error!r}", headers=close))

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.get("/card")
    def show_card() -> dict[str, Any]:
        return {**card, "requests in progress": scheduler.under_way}

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    def show_metrics() -> Response:
        return metrics.page()

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [entry]}

    @app.get("/v1/models/{name:path}")
    def model(name: str) -> dict[str, Any]:
        service.check_name(name)
        return entry

    if notes is not None:
        app.get("/v1/find")(finder(notes))
    app.post("/tokenize")(service.tokenize)
    app.post("/v1/chat/completions")(service.chat)
    app.post("/v1/completions")(service.complete)
    for name, folder in {"static": STATIC, "web": WEB}.items():
        app.mount(f"/{name}", StaticFiles(directory=folder), name=name)
    return app
