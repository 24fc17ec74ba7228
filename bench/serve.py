"""Server in its own process: tokens/s of 8 clients and of 1, time to first token while others are answered, 200 clients
at once, and growth of memory.

Run: python -m bench.serve [sample | v0 | MODEL FOLDER]      with an untrained model of that size, or a trained one
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass

import torch

from bench.memory import resident
from niels_gpt.config import ModelConfig
from niels_gpt.model.gpt import GPT
from niels_gpt.talk.server.access import listen, make_server
from niels_gpt.talk.server.app import build_app
from niels_gpt.talk.talker import Talker, open_talker
from niels_gpt.tokenizer.tokenizers import ByteTokenizer

SIZES = {
    "sample": ModelConfig(V=1024, T=128, C=128, L=2, H=2, d_ff=512, dropout=0.0),
    "v0": ModelConfig(V=260, dropout=0.0),
}
CLIENTS, TOKENS, ROUNDS = 8, 60, 5


def untrained(size: str) -> Talker:
    """Return a model that never ends a turn and writes a character with every token: all other logits are lower."""
    torch.manual_seed(0)
    model = GPT(SIZES[size])
    model.tok_emb.weight.data[128:] = 0
    return Talker("bench", model, ByteTokenizer(), "chat_tokens")


@dataclass(frozen=True)
class Answer:
    status: int
    text: str
    times: tuple[float, ...]  # seconds from the request to each part of the text
    retry_after: bool


async def ask(port: int, *, tokens: int, seed: int) -> Answer:
    """Send a request without a client library, which would use more of the two cores than the server."""
    question = {"messages": [{"role": "user", "content": f"tell me about {seed}"}], "max_tokens": tokens, "seed": seed}
    body = json.dumps({**question, "stream": True}).encode()
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
    said, times, status = [], [], await reader.readline()
    headers = (await reader.readuntil(b"\r\n\r\n")).lower()
    async for line in reader:
        if b'"content": "' in line and b'"content": ""' not in line:
            times.append(time.perf_counter() - start)
            said.append(line[line.index(b'"content": "') :])
    writer.close()
    return Answer(int(status.split()[1]), b"".join(said).decode(), tuple(times), b"retry-after" in headers)


async def together(port: int, *, clients: int, tokens: int, first_seed: int) -> float:
    """Return tokens/s."""
    start = time.perf_counter()
    answers = await asyncio.gather(*(ask(port, tokens=tokens, seed=first_seed + n) for n in range(clients)))
    assert all(answer.status == 200 for answer in answers)
    return clients * tokens / (time.perf_counter() - start)


async def joining(port: int, *, tokens: int) -> float:
    """Return a new client's time to first token, in steps of the 7 clients that are being answered."""
    others = [asyncio.create_task(ask(port, tokens=tokens, seed=n)) for n in range(CLIENTS - 1)]
    await asyncio.sleep(0.25)
    new = await ask(port, tokens=5, seed=99)
    gaps = [
        b - a for other in await asyncio.gather(*others) for a, b in zip(other.times, other.times[1:], strict=False)
    ]
    return new.times[0] / statistics.median(gaps)


async def crowd(port: int) -> Counter[str]:
    """Send 200 requests with 20 seeds: each gets the answer of its seed, or a refusal with a Retry-After."""
    answers = await asyncio.gather(*(ask(port, tokens=TOKENS, seed=n % 20) for n in range(200)))
    texts: dict[int, set[str]] = {n: set() for n in range(20)}
    for n, answer in enumerate(answers):
        if answer.status == 200:
            texts[n % 20].add(answer.text)
    assert all(len(said) <= 1 for said in texts.values()), "answers are mixed up"
    assert len({text for said in texts.values() for text in said}) == sum(map(len, texts.values())), "all say the same"
    return Counter(f"{answer.status}{' with Retry-After' if answer.retry_after else ''}" for answer in answers)


async def measure(port: int, pid: int) -> dict[str, object]:
    for seed in range(5):
        await ask(port, tokens=20, seed=seed)
    speeds: dict[int, list[float]] = {1: [], CLIENTS: []}
    for number in range(ROUNDS):  # in turns, so that other load affects both
        for clients, measured in speeds.items():
            measured.append(await together(port, clients=clients, tokens=TOKENS, first_seed=CLIENTS * number))
    ratio = statistics.median(b / a for a, b in zip(*speeds.values(), strict=True))
    one, several = (statistics.median(measured) for measured in speeds.values())
    print(f"  one client {one:.0f} tokens/s, {CLIENTS} clients {several:.0f}: {ratio:.2f} times one")
    alone = [await ask(port, tokens=5, seed=n) for n in range(ROUNDS)]
    first = statistics.median(answer.times[0] for answer in alone)
    waits = [await joining(port, tokens=4 * TOKENS) for _ in range(ROUNDS)]
    wait = statistics.median(waits)
    print(f"  first token {first * 1e3:.1f} ms after the request; beside seven others after {wait:.1f} of their steps")
    crowded = await crowd(port)
    print(f"  200 clients on 16 slots: {dict(crowded)}")
    before = sum(resident(pid).values())
    for seed in range(1000):
        await ask(port, tokens=10, seed=seed)
    after = sum(resident(pid).values())
    print(f"  resident memory {before:.1f} MiB, after 1,000 more requests {after:.1f} MiB")
    return {"one": one, "several": several, "ratio": ratio, "first_s": first, "wait_steps": wait, "crowd": crowded,
            "mib_before": before, "mib_after": after}  # fmt: skip


def serve(chosen: str) -> None:
    talker = untrained(chosen) if chosen in SIZES else open_talker(chosen, device="cpu")
    listening = listen(0)
    print(listening.getsockname()[1], flush=True)
    make_server(build_app(talker, card={})).run(sockets=[listening])


def main() -> None:
    if sys.argv[1:2] == ["server"]:
        serve(sys.argv[2])
        return
    chosen = sys.argv[1] if len(sys.argv) > 1 else "sample"
    command = [sys.executable, "-m", "bench.serve", "server", chosen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline())
            print(f"{chosen}, {torch.get_num_threads()} threads")
            print(json.dumps(asyncio.run(measure(port, server.pid))))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
