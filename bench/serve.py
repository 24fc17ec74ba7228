"""How soon the first token is there, how eight clients fare beside one, and whether memory grows with requests.

Run: python -m bench.serve [MODEL FOLDER]      with a model of its own at the sample's size, or with a trained one
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


def sample_size() -> Talker:
    torch.manual_seed(0)
    model = GPT(ModelConfig(V=1024, T=128, C=128, L=4, H=4, d_ff=512, dropout=0.0))
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
    talker = open_talker(sys.argv[1], device="cpu") if len(sys.argv) > 1 else sample_size()
    # One client for all: a new one a request is what would grow, in this process and not in the server.
    app = build_app(talker, card={})
    with serving(app) as address, httpx.Client(timeout=60) as client:
        url = f"{address}/v1/chat/completions"
        for seed in range(5):
            timed_answer(client, url, tokens=20, seed=seed)
        alone = [timed_answer(client, url, tokens=60, seed=seed) for seed in range(20)]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda seed: timed_answer(client, url, tokens=60, seed=seed), range(40)))
        before = sum(resident().values())
        for seed in range(1000):
            timed_answer(client, url, tokens=10, seed=seed)
        after = sum(resident().values())
    firsts = {
        "first token, one client": statistics.median(first for first, _ in alone),
        "first token, eight clients, slowest": max(first for first, _ in together),
    }
    for name, seconds in firsts.items():
        print(f"  {name:<40}{seconds * 1e3:>8.1f} ms")
    print(f"  resident memory {before:.1f} MiB, after 1,000 more requests {after:.1f} MiB")
    print(json.dumps({**firsts, "mib_before": before, "mib_after": after}))


if __name__ == "__main__":
    main()
