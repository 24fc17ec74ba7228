"""Continuous batching of the answers in progress, and the server's Prometheus metrics."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.exceptions import HTTPException

from niels_gpt.inference.engine import RowsFailed, Token
from niels_gpt.inference.sampling import Sampling, SeededNoise
from niels_gpt.talk.talker import StreamedText, Talker, TextChunk

_MOMENT_S = 0.01  # longest wait for an event loop between two steps, in seconds
_TURNS = 6  # iterations of the event loop that it takes to accept a new client and parse its request


Event = tuple[int, TextChunk]  # index of a choice, and its new text


@dataclass(frozen=True)
class Order:
    """Request for one row of the engine, with its end conditions."""

    prompt: Sequence[int]
    sampling: Sampling
    max_new_tokens: int
    seed: int = 0
    stops: Sequence[str] = ()
    top_logprobs: int | None = None
    echo: bool = False  # the text begins with the prompt, with log probabilities if those are asked for


# Upper bounds of the histogram's buckets, in seconds.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Prometheus metrics of the server."""

    def __init__(self) -> None:
        here = self.registry = CollectorRegistry()
        self.requests = Counter("niels_gpt_requests", "requests answered", ["status"], registry=here)
        self.prompt_tokens = Counter("niels_gpt_prompt_tokens", "prompt tokens", registry=here)
        self.written = Counter("niels_gpt_generated_tokens", "generated tokens", registry=here)
        self.first_text = Histogram(
            "niels_gpt_first_text_seconds", "seconds from a request to its first text", buckets=_SECONDS, registry=here
        )
        self.under_way = Gauge("niels_gpt_answers_under_way", "requests in progress", registry=here)
        self.waiting = Gauge("niels_gpt_answers_waiting", "requests waiting for a slot", registry=here)


@dataclass(eq=False)
class Answer:
    """Answer in progress, with one or more choices; an asynchronous iterator over (choice, its new text)."""

    choices: int
    metrics: Metrics
    queue: asyncio.Queue[Event | Exception] = field(default_factory=asyncio.Queue)
    wanted: bool = True

    async def __aiter__(self) -> AsyncIterator[Event]:
        start, ended, first = time.perf_counter(), 0, True
        while ended < self.choices:
            item = await self.queue.get()
            if isinstance(item, Exception):
                raise item
            if first:
                self.metrics.first_text.observe(time.perf_counter() - start)
            _, chunk = item
            self.metrics.written.inc(chunk.written)
            ended, first = ended + (chunk.finish is not None), False
            yield item

    def leave(self) -> None:
        """Cancel the answer: the scheduler drops its rows before the next step."""
        self.wanted = False


@dataclass(eq=False)
class _Writing:
    """Choice in progress: its order and its text so far."""

    answer: Answer
    choice: int
    order: Order
    text: StreamedText


async def _deliver(items: Sequence[tuple[Answer, Event | Exception]]) -> None:
    """Put events into the queues of their answers, and return when they are written to the sockets."""
    for answer, item in items:
        answer.queue.put_nowait(item)
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class Scheduler:
    """Continuous-batching scheduler.

    One thread owns the model: before each step it drops cancelled rows and admits waiting choices to free slots, then
    every row gets one token.
    """

    def __init__(self, talker: Talker, *, queue: int) -> None:
        self._engine, self._tokenizer, self._slots, self._most = talker.engine, talker.tokenizer, talker.slots, queue
        self._ends = frozenset(talker.tokenizer.special_token_ids().values())
        self.waiting: list[_Writing] = []
        self.under_way: dict[int, _Writing] = {}  # by row of the engine
        self.metrics = Metrics()
        self.metrics.under_way.set_function(lambda: len(self.under_way))
        self.metrics.waiting.set_function(lambda: len(self.waiting))
        self._loop: asyncio.AbstractEventLoop  # the server's, to which events are sent
        self._outbox: list[tuple[Answer, Event | Exception]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    def answer(self, orders: Sequence[Order]) -> Answer:
        """Queue all choices of an answer, if there is room; a caller that stops iterating early must call `leave`."""
        answer = Answer(len(orders), self.metrics)
        with self._changed:
            self.check_room(len(orders))
            self._loop = asyncio.get_running_loop()
            for n, order in enumerate(orders):
                text = StreamedText(self._tokenizer, order.stops, ends=self._ends, max_tokens=order.max_new_tokens)
                self.waiting.append(_Writing(answer, n, order, text))
            self._changed.notify()
        return answer

    def check_room(self, choices: int = 1) -> None:
        """Raise an HTTPException (503) if the queue has no room for this many choices."""
        with self._changed:
            waiting = sum(writing.answer.wanted for writing in self.waiting)
        if waiting + choices > self._most:
            sentence = f"{waiting} requests are queued already; retry in a moment"
            raise HTTPException(503, sentence, headers={"Retry-After": "2"})

    def close(self) -> None:
        """Stop the thread after its current step."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self.waiting or self.under_way)
                if self._closed:
                    return
            try:
                self._admit()
                self._step()
            except Exception as error:  # the whole step failed: report it to every active answer, keep the thread alive
                for answer in {writing.answer for writing in self.under_way.values()}:
                    self._fail(answer, error)
            self._send()

    def _admit(self) -> None:
        """Drop cancelled rows, then move waiting choices into free slots."""
        for row in [row for row, writing in self.under_way.items() if not writing.answer.wanted]:
            self._engine.drop(row)
            del self.under_way[row]
        while True:
            with self._changed:
                self.waiting = [writing for writing in self.waiting if writing.answer.wanted]
                if not self.waiting or len(self.under_way) == self._slots:
                    return
                writing = self.waiting.pop(0)
            order = writing.order
            try:
                row = self._engine.add(
                    order.prompt,
                    order.sampling,
                    noise=SeededNoise(order.seed),
                    top_logprobs=order.top_logprobs,
                    score_prompt=order.echo,
                )
                self.under_way[row] = writing
            except Exception as error:  # report it to the client whose prompt caused it
                self._fail(writing.answer, error)

    def _step(self) -> None:
        """Generate one token for each row, and drop the rows that have finished."""
        try:
            tokens: Sequence[Token] = self._engine.step()
        except RowsFailed as error:
            tokens = error.tokens
            for answer in {self.under_way[row].answer for row in error.rows}:
                self._fail(answer, error)
        for token in tokens:
            writing = self.under_way[token.row]
            text = writing.text
            if token.prompt:
                self._outbox.append((writing.answer, (writing.choice, text.echo(token.prompt))))
            chunk = text.add(token) if writing.order.max_new_tokens else text.rest()
            if chunk != TextChunk():
                self._outbox.append((writing.answer, (writing.choice, chunk)))
            if chunk.finish:
                self._engine.drop(token.row)
                del self.under_way[token.row]

    def _send(self) -> None:
        """Send all events, and wait until they are written to the sockets, at most `_MOMENT_S`.

        Clients that have just connected may then join the next step. Because of the GIL, socket writes during a step
        would delay the step and each other; waiting gives 10% more tokens/s at 8 clients.
        """
        posted, self._outbox = self._outbox, []
        if posted:
            with suppress(TimeoutError, CancelledError):  # the loop is busy, or at its end
                asyncio.run_coroutine_threadsafe(_deliver(posted), self._loop).result(_MOMENT_S)

    def _fail(self, answer: Answer, error: Exception) -> None:
        """End an answer with an error; the rows of all its choices are dropped before the next step."""
        self._outbox.append((answer, error))
        answer.leave()
