"""Replies in OpenAI's form: whole, or streamed as server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from niels_gpt.talk.server.forms import Form
from niels_gpt.talk.server.metrics import Metrics
from niels_gpt.talk.server.refusals import refusal_body
from niels_gpt.talk.server.scheduler import Answer, Event
from niels_gpt.talk.text import Piece


class Reply:
    """One reply in OpenAI's form, and what is counted of it."""

    def __init__(self, form: Form, model: str, *, prompt_tokens: int, more: Mapping[str, Any]) -> None:
        self.form, self.id = form, f"{form.prefix}-{uuid.uuid4().hex}"
        self._head = {"id": self.id, "created": int(time.time()), "model": model, **more}
        # The same in every part, and made once: there is a part for every token.
        self._part_head = json.dumps({**self._head, "object": form.part})[:-1]
        self.prompt_tokens, self.written = prompt_tokens, 0

    @property
    def usage(self) -> dict[str, int]:
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.written}
        return {**counts, "total_tokens": sum(counts.values())}

    def whole(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": self.form.whole, "choices": choices, "usage": self.usage}

    def part(self, choices: list[dict[str, Any]], **usage: Any) -> str:
        rest = json.dumps({"choices": choices, **usage})[1:]
        return f"data: {self._part_head}, {rest}\n\n"


class Stream(StreamingResponse):
    """A reply as server-sent events. However it ends, even before it has begun, the work on it ends, too."""

    def __init__(self, reply: Reply, answer: Answer, metrics: Metrics, *, usage: bool) -> None:
        super().__init__(_events(reply, metrics.timed(answer), answer.choices, usage), media_type="text/event-stream")
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.leave()


async def _events(reply: Reply, events: AsyncIterator[Event], choices: int, usage: bool) -> AsyncIterator[str]:
    none_yet = {"usage": None} if usage else {}
    for index in range(choices):
        if (opening := reply.form.opening(index)) is not None:
            yield reply.part([opening], **none_yet)
    try:
        async for event in events:
            reply.written += event.written
            if event.finish is None:
                yield reply.part([reply.form.delta(event.choice, event.piece, None)], **none_yet)
                continue
            if event.piece.text or event.piece.tokens:
                yield reply.part([reply.form.delta(event.choice, event.piece, None)], **none_yet)
            yield reply.part([reply.form.delta(event.choice, Piece(), event.finish)], **none_yet)
    except Exception as error:  # the answer has begun: what went wrong can only be said inside it
        yield f"data: {json.dumps(refusal_body(500, str(error)))}\n\n"
    else:
        if usage:
            yield reply.part([], usage=reply.usage)
    yield "data: [DONE]\n\n"


async def whole_reply(reply: Reply, answer: Answer, metrics: Metrics, request: Request) -> dict[str, Any]:
    """Return the whole answer, or what there was of it when the client left."""
    pieces: list[list[Piece]] = [[] for _ in range(answer.choices)]
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
        Piece("".join(piece.text for piece in said), tuple(token for piece in said for token in piece.tokens))
        for said in pieces
    ]
    return reply.whole([reply.form.choice(n, piece, finish[n]) for n, piece in enumerate(joined)])


async def _leave_with_client(request: Request, answer: Answer) -> None:
    """End the answer when the client closes its connection, even while it waits for a slot."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    answer.leave()
    answer.queue.put_nowait(ClientDisconnect())
