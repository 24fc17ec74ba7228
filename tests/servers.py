"""Servers of a tiny model on loopback, and requests to send them."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import torch
from starlette.types import ASGIApp

from niels_gpt.config import ModelConfig
from niels_gpt.inference.sampling import Sampling
from niels_gpt.model.gpt import GPT
from niels_gpt.talk.server.access import listen, make_server
from niels_gpt.talk.server.app import Limits
from niels_gpt.talk.server.scheduler import Order, Scheduler
from niels_gpt.talk.talker import Talker, TextChunk
from niels_gpt.tokenizer.tokenizers import ByteTokenizer

if TYPE_CHECKING:
    import openai

LIMITS = Limits(body_bytes=200_000, new_tokens=400)
EOT = ByteTokenizer().special_token_ids()["eot"]


def tiny_talker(*, slots: int = 12) -> Talker:
    torch.manual_seed(0)
    model = GPT(ModelConfig(V=260, T=64, C=32, L=2, H=2, d_ff=64, dropout=0.0))
    model.tok_emb.weight.data[256:] = 0  # a logit of 0 is never in the top 50: no special token ends an answer
    return Talker("tiny", model, ByteTokenizer(), "chat_tokens", slots)


def ask(content: str, **more: object) -> dict[str, object]:
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 20, "seed": 1, **more}


def expected(content: str, *, tokens: int = 20) -> str:
    talker = tiny_talker()
    said = talker.reply(
        [{"role": "user", "content": content}], sampling=Sampling(0.8, 50), max_new_tokens=tokens, seed=1
    )
    return "".join(said)


def openai_client(address: str, *, key: str = "none") -> "openai.OpenAI":
    """Return the real OpenAI client; only the test processes that need it import it (0.7 s)."""
    import openai

    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0, timeout=60)


def post(app: ASGIApp, body: dict[str, object]) -> httpx.Response:
    return post_all(app, [json.dumps(body)])[0]


def post_all(app: ASGIApp, bodies: Sequence[str | bytes]) -> list[httpx.Response]:
    """Post the bodies to the app in this process, without a network."""

    async def send() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as inside:
            return [await inside.post("/v1/chat/completions", content=body) for body in bodies]

    return asyncio.run(send())


def assert_refused(answer: httpx.Response, status: int, words: str) -> None:
    """Check that the app refuses as OpenAI's API does, with the keys that its clients look for."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert words in error["message"]
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
    assert {"param", "code"} < set(error)


def connect(address: str) -> socket.socket:
    """Open a connection; the timeout is a watchdog, as nothing tested here takes a minute."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def post_head(address: str, length: int) -> bytes:
    return f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address[7:]}\r\nContent-Length: {length}\r\n\r\n".encode()


FOR_EVER = Limits(new_tokens=10**9)


def wait_until(reached: Callable[[], bool]) -> None:
    """Poll until `reached` is true; the limit of a minute is a watchdog."""
    for _ in range(600):
        if reached():
            return
        time.sleep(0.1)
    raise AssertionError("not within a minute")


def for_ever(**more: object) -> bytes:
    """Return the body of a request for an endless answer in large chunks (20 logprobs per token)."""
    return json.dumps(ask("go on", max_tokens=None, logprobs=True, top_logprobs=20, **more)).encode()


def under_way(address: str) -> int:
    return int(httpx.get(f"{address}/card").json()["requests in progress"])


def order(tokens: int, **more: Any) -> Order:
    return Order(prompt=[65, 66], sampling=Sampling(0.0, **more), seed=0, max_new_tokens=tokens)


async def events_of(answer: Any) -> list[TextChunk]:
    return [chunk async for _, chunk in answer]


def scheduled(work: Callable[[Scheduler], Coroutine[Any, Any, None]], *, slots: int = 3, queue: int = 3) -> None:
    talker = tiny_talker(slots=slots)

    async def run() -> None:
        scheduler = Scheduler(talker, queue=queue)
        try:
            await asyncio.wait_for(work(scheduler), 60)
        finally:
            scheduler.close()

    asyncio.run(run())


CHAT, TEXT, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"


def streamed(address: str, content: str, *, tokens: int) -> str:
    """Return the text that a streaming client receives."""
    body, text = ask(content, max_tokens=tokens, stream=True), ""
    with httpx.stream("POST", address + CHAT, json=body, timeout=60) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
    return text


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Serve the app on loopback inside the context; yield its address."""
    listening, server = listen(0), make_server(app)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield address
    finally:
        server.should_exit = True
        thread.join(timeout=10)
