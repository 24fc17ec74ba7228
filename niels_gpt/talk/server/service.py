"""What requests ask of the model: bodies read and checked, made into rows of the engine, and answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse, Response

from niels_gpt.inference.sampling import Sampling
from niels_gpt.rng import derive_seed
from niels_gpt.talk.server.forms import ChatForm, CompletionForm, Form
from niels_gpt.talk.server.metrics import Metrics
from niels_gpt.talk.server.replies import Reply, Stream, whole_reply
from niels_gpt.talk.server.request import Asked, Body, ChatRequest, CompletionRequest, TokenizeRequest, parse_request
from niels_gpt.talk.server.scheduler import Busy, Order, Scheduler
from niels_gpt.talk.talker import Talker

RETRY_AFTER_S = 2


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, and how many may wait for one of the model's slots."""

    body_bytes: int = 1 << 20
    new_tokens: int = 1024
    queue: int = 64


class Service:
    """A model, and what may be asked of it."""

    def __init__(self, talker: Talker, scheduler: Scheduler, metrics: Metrics, limits: Limits) -> None:
        self._talker, self._scheduler, self._metrics, self._limits = talker, scheduler, metrics, limits

    async def tokenize(self, request: Request) -> dict[str, Any]:
        asked = await self._parsed(TokenizeRequest, request)
        messages = [message.model_dump() for message in asked.messages]
        ids = self._talker.prompt(messages) if messages else self._talker.tokenizer.encode(asked.prompt or "")
        return {"count": len(ids), "max_model_len": self._talker.model.cfg.T, "tokens": ids}

    async def chat(self, request: Request) -> Response:
        asked = await self._parsed(ChatRequest, request)
        most = min(asked.max_completion_tokens or asked.max_tokens or self._limits.new_tokens, self._limits.new_tokens)
        said = [message.model_dump() for message in asked.messages]
        messages, forgotten = self._talker.remember(said, max_new_tokens=most)
        prompt = self._talker.prompt(messages)
        cut = self._talker.beyond(prompt)
        dropped = {"forgotten_messages": forgotten, "cut_tokens": cut}
        return await self._answered(
            request,
            asked,
            ChatForm(self._talker.tokenizer, logprobs=asked.logprobs),
            prompts=[prompt[cut:]],
            most=most,
            stops=(*asked.stops, *self._talker.stops),
            top_logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
            more={name: count for name, count in dropped.items() if count},
        )

    async def complete(self, request: Request) -> Response:
        asked = await self._parsed(CompletionRequest, request)
        return await self._answered(
            request,
            asked,
            CompletionForm(self._talker.tokenizer, logprobs=asked.logprobs is not None),
            prompts=self._prompts(asked.prompt),
            most=min(asked.max_tokens or self._limits.new_tokens, self._limits.new_tokens),
            stops=asked.stops,
            top_logprobs=asked.logprobs,
            more={},
        )

    def check_name(self, name: str) -> None:
        if name != self._talker.name:
            raise HTTPException(404, f"there is no model {name[:100]!r} here; this one is {self._talker.name!r}")

    async def _parsed(self, kind: type[Body], request: Request) -> Body:
        content = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if content != "application/json":
            raise HTTPException(415, f"the request comes as {content!r}: say `content-type: application/json`")
        try:
            asked = parse_request(kind, await request.body())
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        if asked.model is not None:
            self.check_name(asked.model)
        return asked

    def _sampling(self, asked: Asked) -> Sampling:
        try:
            sampling = asked.sampling()
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        V = self._talker.model.cfg.V
        foreign = [token for token in sampling.logit_bias if token >= V]
        if foreign:
            raise HTTPException(400, f"logit_bias: there is no token {foreign[0]}; they are 0 to {V - 1}")
        return sampling

    def _prompts(self, prompt: str | list[str] | list[int] | list[list[int]]) -> list[list[int]]:
        """The ids of each. Unlike a chat, a text that is too long is not cut: nobody could say where."""
        cfg, out = self._talker.model.cfg, []
        for one in _each(prompt):
            ids = self._talker.tokenizer.encode(one) if isinstance(one, str) else one
            if not ids:
                raise HTTPException(400, "prompt: it is empty; give the model at least one character to go on from")
            if len(ids) > cfg.T:
                sentence = f"prompt: its {len(ids)} tokens do not fit the context of {cfg.T}: send a shorter one"
                raise HTTPException(400, sentence)
            if not all(0 <= id < cfg.V for id in ids):
                raise HTTPException(400, f"prompt: ids of tokens are 0 to {cfg.V - 1}")
            out.append(ids)
        return out

    async def _answered(
        self,
        request: Request,
        asked: Asked,
        form: Form,
        *,
        prompts: Sequence[Sequence[int]],
        most: int,
        stops: tuple[str, ...],
        top_logprobs: int | None,
        more: Mapping[str, Any],
    ) -> Response:
        reply = Reply(form, self._talker.name, prompt_tokens=sum(map(len, prompts)), more=more)
        sampling, seed = self._sampling(asked), derive_seed(0, reply.id) if asked.seed is None else asked.seed
        orders = [
            Order(prompt, sampling, derive_seed(seed, "choice", n) if n else seed, most, stops, top_logprobs)
            for prompt in prompts
            for n in range(asked.n)
        ]
        try:
            answer = self._scheduler.answer(orders)
        except Busy as error:
            raise HTTPException(503, str(error), headers={"Retry-After": str(RETRY_AFTER_S)}) from error
        self._metrics.count_prompt(reply.prompt_tokens)
        if asked.stream:
            return Stream(reply, answer, self._metrics, usage=asked.stream_options.include_usage)
        return JSONResponse(await whole_reply(reply, answer, self._metrics, request))


def _each(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """A list of numbers is one prompt."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [one for one in prompt if isinstance(one, int)]
    return [one for one in prompt if not isinstance(one, int)] or [ids]
