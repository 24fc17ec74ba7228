"""Tokens a second of eight clients beside one, how soon the first token is there, and whether memory grows.

Run: python -m bench.serve [sample | v0 | MODEL FOLDER]      with a model of its own of that size, or with a trained one
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import httpx
import torch
from starlette.types import ASGIApp

from bench.memory import resident
from niels_gpt.config import ModelConfig
from niels_gpt.model.gpt import GPT
from niels_gpt.talk.server.app import build_app
from niels_gpt.talk.server.connection import PATIENCE_S, listen, make_server
from niels_gpt.talk.talker import Talker, open_talker
from niels_gpt.tokenizer.bytes import ByteTokenizer

SIZES = {
    "sample": ModelConfig(V=1024, T=128, C=128, L=2, H=2, d_ff=512, dropout=0.0),
    "v0": ModelConfig(V=260, dropout=0.0),
}
CLIENTS, TOKENS, ROUNDS = 8, 60, 5


def untrained(size: str) -> Talker:
    """It never ends a turn by itself: the logits of chat tokens are lower than others."""
    torch.manual_seed(0)
    model = GPT(SIZES[size])
    model.tok_emb.weight.data[256:] = 0
    return Talker("bench", model, ByteTokenizer(), "chat_tokens")


@contextmanager
def serving(app: ASGIApp, *, patience_s: int = PATIENCE_S) -> Iterator[str]:
    """The address of a server on loopback, which stops with the block."""
    listening, server = listen(0), make_server(app, patience_s=patience_s)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield address
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def timed_answer(client: httpx.Client, url: str, *, tokens: int, seed: int) -> tuple[float, float]:
    """Seconds to the first piece of text, and to the last."""
    body = {"messages": [{"role": "user", "content": f"tell me about {seed}"}], "max_tokens": tokens, "seed": seed}
    start, first = time.perf_counter(), 0.0
    with client.stream("POST", url, json={**body, "stream": True}) as answer:
        for line in answer.iter_lines():
            if not first and '"content": "' in line and '"content": ""' not in line:
                first = time.perf_counter() - start
    return first, time.perf_counter() - start


def main() -> None:
    chosen = sys.argv[1] if len(sys.argv) > 1 else "sample"
    talker = untrained(chosen) if chosen in SIZES else open_talker(chosen, device="cpu")
    # One client for all: a new one a request is what would grow, in this process and not in the server.
    with serving(build_app(talker, card={})) as address, httpx.Client(timeout=60) as client:
        ask = partial(timed_answer, client, f"{address}/v1/chat/completions")
        for seed in range(5):
            ask(tokens=20, seed=seed)
        alone: list[tuple[float, float]] = []
        together: list[tuple[float, float]] = []
        seconds = {"one": 0.0, "several": 0.0}
        with ThreadPoolExecutor(CLIENTS) as pool:
            for number in range(ROUNDS):  # in turns, so that what else the machine does meets both
                start = time.perf_counter()
                alone += [ask(tokens=TOKENS, seed=number)]
                seconds["one"] += time.perf_counter() - start
                start = time.perf_counter()
                seeds = range(CLIENTS * number, CLIENTS * (number + 1))
                together += pool.map(lambda seed: ask(tokens=TOKENS, seed=seed), seeds)
                seconds["several"] += time.perf_counter() - start
        before = sum(resident().values())
        for seed in range(1000):
            ask(tokens=10, seed=seed)
        after = sum(resident().values())
    speed = {
        "one client": ROUNDS * TOKENS / seconds["one"],
        f"{CLIENTS} clients": CLIENTS * ROUNDS * TOKENS / seconds["several"],
    }
    ratio = speed[f"{CLIENTS} clients"] / speed["one client"]
    for name, tokens in speed.items():
        print(f"  {name:<40}{tokens:>8.0f} tokens/s")
    print(f"  together {ratio:.2f} times one")
    firsts = {
        "first token, one client": statistics.median(first for first, _ in alone),
        f"first token, {CLIENTS} clients, slowest": max(first for first, _ in together),
    }
    for name, wait in firsts.items():
        print(f"  {name:<40}{wait * 1e3:>8.1f} ms")
    print(f"  resident memory {before:.1f} MiB, after 1,000 more requests {after:.1f} MiB")
    print(json.dumps({**speed, "ratio": ratio, **firsts, "mib_before": before, "mib_after": after}))


if __name__ == "__main__":
    main()
