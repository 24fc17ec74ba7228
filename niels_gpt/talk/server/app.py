"""The HTTP application: a web page to chat with, and an OpenAI-compatible API for the same model."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import Receive, Scope, Send

from niels_gpt.generate import Sampling
from niels_gpt.rng import derive_seed
from niels_gpt.talk.server.gate import Gate
from niels_gpt.talk.server.refusals import refusal, refusal_body
from niels_gpt.talk.server.request import ChatRequest, parse_request
from niels_gpt.talk.server.scheduler import Answer, Busy, Scheduler
from niels_gpt.talk.talker import SAMPLING, ReplyPart, Talker

STATIC = Path(__file__).with_name("static")


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, and how many are answered at a time."""

    body_bytes: int = 1 << 20
    new_tokens: int = 1024
    at_once: int = 16


def build_app(talker: Talker, *, card: dict[str, Any], limits: Limits | None = None) -> FastAPI:
    """`card` is what the page shows of the model."""
    limits = limits or Limits()
    scheduler = Scheduler(at_once=limits.at_once)
    entry = {"id": talker.name, "object": "model", "created": 0, "owned_by": "niels_gpt"}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        scheduler.close()

    app = FastAPI(title="niels_gpt", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Gate, body_bytes=limits.body_bytes)
    # Starlette's, which FastAPI's is one of: a page that is not there and a method that is not allowed are said by it.
    app.add_exception_handler(
        AnyHTTPException, lambda _, error: refusal(error.status_code, error.detail, headers=error.headers)
    )
    app.add_exception_handler(Exception, lambda _, error: refusal(500, f"this is an error of the server: {error!r}"))

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.get("/card")
    def show_card() -> dict[str, Any]:
        return {**card, "answers under way": scheduler.under_way}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [entry]}

    @app.get("/v1/models/{name:path}")
    def model(name: str) -> dict[str, Any]:
        _check_name(name)
        return entry

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPException(415, f"the request comes as {kind!r}: say `content-type: application/json`")
        try:
            asked = parse_request(await request.body())
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        if asked.model is not None:
            _check_name(asked.model)
        reply = _Reply(talker, asked, limits)
        try:
            answer = scheduler.answer(reply.pieces(talker, asked))
        except Busy as error:
            raise HTTPException(503, str(error)) from error
        if asked.stream:
            return _Stream(reply, answer)
        return JSONResponse(reply.whole(await _text(reply, answer, request)))

    def _check_name(name: str) -> None:
        if name != talker.name:
            raise HTTPException(404, f"there is no model {name[:100]!r} here; this one is {talker.name!r}")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


class _Reply:
    """One reply in OpenAI's form, and what is counted of it."""

    def __init__(self, talker: Talker, asked: ChatRequest, limits: Limits) -> None:
        self.id, self.created, self.model = f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), talker.name
        self._messages = [message.model_dump() for message in asked.messages]
        self._most = min(asked.max_completion_tokens or asked.max_tokens or limits.new_tokens, limits.new_tokens)
        self._prompt_tokens, self._tokens = len(talker.prompt(self._messages)), 0
        self._ended = False

    def pieces(self, talker: Talker, asked: ChatRequest) -> Iterator[ReplyPart]:
        return talker.reply(
            self._messages,
            sampling=Sampling(
                SAMPLING.temperature if asked.temperature is None else asked.temperature, asked.top_k, asked.top_p
            ),
            max_new_tokens=self._most,
            seed=derive_seed(0, self.id) if asked.seed is None else asked.seed,
        )

    def count(self, piece: ReplyPart) -> None:
        self._tokens += piece.tokens
        self._ended = piece.ended

    @property
    def finish_reason(self) -> str:
        return "stop" if self._ended else "length"

    def whole(self, text: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": self._prompt_tokens, "completion_tokens": self._tokens}
        return {
            **self._head("chat.completion"),
            "choices": [{"index": 0, "message": message, "finish_reason": self.finish_reason}],
            "usage": {**usage, "total_tokens": sum(usage.values())},
        }

    def part(self, delta: dict[str, str], *, finish: str | None = None) -> str:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return f"data: {json.dumps({**self._head('chat.completion.chunk'), 'choices': choices})}\n\n"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class _Stream(StreamingResponse):
    """A reply as server-sent events. However it ends, even before it has begun, the work on it ends, too."""

    def __init__(self, reply: _Reply, answer: Answer) -> None:
        super().__init__(_events(reply, answer), media_type="text/event-stream")
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.leave()


async def _events(reply: _Reply, answer: Answer) -> AsyncIterator[str]:
    yield reply.part({"role": "assistant", "content": ""})
    try:
        async for piece in answer:
            reply.count(piece)
            if piece.text:
                yield reply.part({"content": piece.text})
    except Exception as error:  # the answer has begun: what went wrong can only be said inside it
        yield f"data: {json.dumps(refusal_body(500, str(error)))}\n\n"
    else:
        yield reply.part({}, finish=reply.finish_reason)
    yield "data: [DONE]\n\n"


async def _text(reply: _Reply, answer: Answer, request: Request) -> str:
    """The whole answer, or what there was of it when the client went."""
    said = []
    try:
        async for piece in answer:
            reply.count(piece)
            said.append(piece.text)
            if await request.is_disconnected():
                break
    finally:
        answer.leave()
    return "".join(said)
