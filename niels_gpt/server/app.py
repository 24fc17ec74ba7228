"""The web page to chat with, and the same model behind the requests that OpenAI's clients make."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from niels_gpt.generate import Sampling
from niels_gpt.rng import derive_seed
from niels_gpt.server.turns import Busy, Turns
from niels_gpt.talk import Said, Talker

STATIC = Path(__file__).with_name("static")


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, and how many are answered at a time."""

    body_bytes: int = 1 << 20
    new_tokens: int = 1024
    at_once: int = 16


class ChatMessage(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: str


class ChatRequest(BaseModel):
    """The fields of OpenAI's request that mean something here; others are let pass."""

    messages: list[ChatMessage] = Field(min_length=1)
    model: str | None = None
    stream: bool = False
    temperature: float = Field(0.8, ge=0, le=10)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(50, ge=1)  # ours
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=0, lt=2**63)
    n: Literal[1] = 1


def build_app(talker: Talker, *, card: dict[str, Any], limits: Limits | None = None) -> FastAPI:
    """`card` is what the page shows of the model."""
    limits = limits or Limits()
    turns = Turns(at_once=limits.at_once)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        turns.close()

    app = FastAPI(title="niels_gpt", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(SizeLimit, body_bytes=limits.body_bytes)
    app.add_exception_handler(HTTPException, lambda _, e: _error(e.status_code, e.detail))
    app.add_exception_handler(RequestValidationError, lambda _, e: _error(400, _first_problem(e)))

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.get("/card")
    def show_card() -> dict[str, Any]:
        return {**card, "answers under way": turns.under_way}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        entry = {"id": talker.name, "object": "model", "created": 0, "owned_by": "niels_gpt"}
        return {"object": "list", "data": [entry]}

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(asked: ChatRequest, request: Request) -> JSONResponse | StreamingResponse:
        if asked.model not in (None, talker.name):
            raise HTTPException(404, f"there is no model {asked.model!r} here; this one is {talker.name!r}")
        answer = _Answer(talker, asked, limits)
        try:
            pieces = turns.answer(answer.pieces)
        except Busy as error:
            raise HTTPException(503, str(error)) from error
        if asked.stream:
            return StreamingResponse(_events(answer, pieces), media_type="text/event-stream")
        return JSONResponse(answer.whole(await _text(answer, pieces, request)))

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


class _Answer:
    """One reply in OpenAI's form."""

    def __init__(self, talker: Talker, asked: ChatRequest, limits: Limits) -> None:
        self.id, self.created, self.model = f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), talker.name
        messages = [message.model_dump() for message in asked.messages]
        self._most = min(asked.max_completion_tokens or asked.max_tokens or limits.new_tokens, limits.new_tokens)
        self.prompt_tokens, self.tokens = len(talker.prompt(messages)), 0
        self.pieces = talker.reply(
            messages,
            sampling=Sampling(asked.temperature, asked.top_k, asked.top_p),
            max_new_tokens=self._most,
            seed=derive_seed(0, self.id) if asked.seed is None else asked.seed,
        )

    @property
    def finish_reason(self) -> str:
        return "length" if self.tokens >= self._most else "stop"

    def whole(self, text: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.tokens}
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


async def _events(answer: _Answer, pieces: AsyncIterator[Said]) -> AsyncIterator[str]:
    """Server-sent events. Starlette stops asking for more when the client has gone, which ends the work."""
    yield answer.part({"role": "assistant", "content": ""})
    try:
        async for piece in pieces:
            answer.tokens += piece.tokens
            if piece.text:
                yield answer.part({"content": piece.text})
    except Exception as error:  # the answer has begun: what went wrong can only be said inside it
        yield f"data: {json.dumps(_error_body(str(error)))}\n\n"
    else:
        yield answer.part({}, finish=answer.finish_reason)
    yield "data: [DONE]\n\n"


async def _text(answer: _Answer, pieces: AsyncIterator[Said], request: Request) -> str:
    """The whole answer, or what there was of it when the client went."""
    said = []
    async for piece in pieces:
        answer.tokens += piece.tokens
        said.append(piece.text)
        if await request.is_disconnected():
            break
    return "".join(said)


class SizeLimit:
    """Refuses a body that says it is too large, and one that turns out to be."""

    def __init__(self, app: ASGIApp, *, body_bytes: int) -> None:
        self._app, self._most = app, body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._most:
            await self._refuse(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._most:
                raise HTTPException(413, self._sentence())
            return message

        await self._app(scope, counted, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _error(413, self._sentence())(scope, receive, send)

    def _sentence(self) -> str:
        return f"the request is larger than {self._most:,} bytes: send a shorter chat"


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse(_error_body(message), status_code=status)


def _error_body(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}


def _first_problem(error: RequestValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"] if part != "body")
    return f"{where or 'the body'}: {problem['msg'][0].lower()}{problem['msg'][1:]}"
