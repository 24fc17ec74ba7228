"""Continuous batching of the answers in progress, and the server's Prometheus metrics."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from niels_gpt.inference.engine import Engine, RowsFailed, Token
from niels_gpt.inference.sampling import Sampling, SeededNoise
from niels_gpt.talk.talker import StreamedText, TextChunk
from niels_gpt.tokenizer.vocabulary import Tokenizer

Finish = Literal["stop", "length"]
_MOMENT_S = 0.01  # longest wait for an event loop between two steps, in seconds
_TURNS = 6  # iterations of the event loop that it takes to accept a new client and parse its request


class Busy(RuntimeError):
    """Error raised when the queue is full."""


@dataclass(frozen=True)
class Order:
    """Request for one row of the engine, with its end conditions."""

    prompt: Sequence[int]
    sampling: Sampling
    seed: int
    max_new_tokens: int
    stops: tuple[str, ...] = ()
    top_logprobs: int | None = None
    echo: bool = False  # the text begins with the prompt, with log probabilities if those are asked for


@dataclass(frozen=True)
class Event:
    """New text of one choice, with the finish reason if it is the last."""

    choice: int
    piece: TextChunk
    finish: Finish | None = None
    written: int = 0  # tokens generated in total; set in the last event


@dataclass(eq=False)
class Answer:
    """Answer in progress, with one or more choices; events are delivered in the event loop of the caller."""

    choices: int
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Event | Exception] = field(default_factory=asyncio.Queue)
    wanted: bool = True

    async def __aiter__(self) -> AsyncIterator[Event]:
        ended = 0
        while ended < self.choices:
            item = await self.queue.get()
            if isinstance(item, Exception):
                raise item
            ended += item.finish is not None
            yield item

    def leave(self) -> None:
        """Cancel the answer: the scheduler drops its rows before the next step."""
        self.wanted = False


class _Post:
    """Outbox of events, sent together: waking a loop costs as much as several operations of the model."""

    def __init__(self) -> None:
        self._items: dict[asyncio.AbstractEventLoop, list[tuple[Answer, Event | Exception]]] = {}

    def add(self, answer: Answer, item: Event | Exception) -> None:
        """Queue an event, or an error that ends the answer."""
        self._items.setdefault(answer.loop, []).append((answer, item))

    def send(self) -> None:
        """Deliver all events, and wait until they are written to the sockets (at most `_MOMENT_S` per loop).

        Clients that have just connected may then join the next step. Because of the GIL, socket writes during a step
        would delay the step and each other; waiting gives 10% more tokens/s at 8 clients.
        """
        posted, self._items = self._items, {}
        for loop, items in posted.items():
            sent = threading.Event()
            try:
                loop.call_soon_threadsafe(_deliver, items, sent)
            except RuntimeError:  # the loop is closed, so nobody receives the events
                for answer, _ in items:
                    answer.leave()
            else:
                sent.wait(_MOMENT_S)


def _deliver(items: Sequence[tuple[Answer, Event | Exception]], sent: threading.Event) -> None:
    for answer, item in items:
        answer.queue.put_nowait(item)
    _after_turns(_TURNS, sent.set)


def _after_turns(turns: int, call: Callable[[], None]) -> None:
    """Run `call` after this many iterations of the event loop."""
    loop = asyncio.get_running_loop()
    loop.call_soon(*((_after_turns, turns - 1, call) if turns > 1 else (call,)))


class _Writing:
    """Choice in progress: its order and its text so far."""

    def __init__(self, answer: Answer, choice: int, order: Order, tokenizer: Tokenizer, post: _Post) -> None:
        self.answer, self.order, self._choice, self._post = answer, order, choice, post
        self._text = StreamedText(tokenizer, order.stops)
        self._ends = frozenset(tokenizer.special_token_ids().values())
        self._written = 0

    def echo(self, prompt: Sequence[Token]) -> None:
        """Post the prompt."""
        self._post.add(self.answer, Event(self._choice, self._text.echo(prompt)))

    def take(self, token: Token) -> bool:
        """Post the text that a token completes; return True if it is the last one."""
        if self.order.max_new_tokens == 0:
            return self._end("length", self._text.rest())
        if token.id in self._ends:
            rest = self._text.rest()
            # lm-eval expects one token after an echoed prompt, whichever it is.
            return self._end("stop", TextChunk(rest.text, (*rest.tokens, token)) if self.order.echo else rest)
        self._written += 1
        piece = self._text.add(token)
        if self._text.stopped:
            return self._end("stop", piece)
        if self._written == self.order.max_new_tokens:
            rest = self._text.rest()
            reason: Finish = "stop" if self._text.stopped else "length"
            return self._end(reason, TextChunk(piece.text + rest.text, piece.tokens + rest.tokens))
        if piece.text or piece.tokens:
            self._post.add(self.answer, Event(self._choice, piece))
        return False

    def _end(self, reason: Finish, piece: TextChunk) -> bool:
        self._post.add(self.answer, Event(self._choice, piece, reason, self._written))
        return True


class Scheduler:
    """Continuous-batching scheduler.

    One thread owns the model: before each step it drops cancelled rows and admits waiting choices to free slots, then
    every row gets one token.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, *, slots: int, queue: int) -> None:
        self._engine, self._tokenizer, self._slots, self._most = engine, tokenizer, slots, queue
        self._waiting: deque[_Writing] = deque()
        self._rows: dict[int, _Writing] = {}
        self._post = _Post()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    def answer(self, orders: Sequence[Order]) -> Answer:
        """Queue all choices of an answer, or raise Busy; a caller that stops iterating early must call `leave`."""
        answer = Answer(len(orders), asyncio.get_running_loop())
        with self._changed:
            self.check_room(len(orders))
            self._waiting += (_Writing(answer, n, order, self._tokenizer, self._post) for n, order in enumerate(orders))
            self._changed.notify()
        return answer

    def check_room(self, choices: int = 1) -> None:
        """Raise Busy if the queue has no room for this many choices."""
        with self._changed:
            waiting = sum(writing.answer.wanted for writing in self._waiting)
        if waiting + choices > self._most:
            raise Busy(f"{waiting} requests are queued already; retry in a moment")

    @property
    def under_way(self) -> int:
        return len(self._rows)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        """Stop the thread after its current step."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting or self._rows)
                if self._closed:
                    return
            try:
                self._admit()
                self._step()
            except Exception as error:  # the whole step failed: report it to every active answer, keep the thread alive
                for answer in {writing.answer for writing in self._rows.values()}:
                    self._fail(answer, error)
            self._post.send()

    def _admit(self) -> None:
        """Drop cancelled rows, then move waiting choices into free slots."""
        for row, writing in list(self._rows.items()):
            if not writing.answer.wanted:
                self._drop(row)
        with self._changed:
            if not all(writing.answer.wanted for writing in self._waiting):
                self._waiting = deque(writing for writing in self._waiting if writing.answer.wanted)
        while self._waiting and len(self._rows) < self._slots:
            writing = self._waiting[0]
            if writing.answer.wanted:
                order = writing.order
                try:
                    row = self._engine.add(
                        order.prompt,
                        order.sampling,
                        noise=SeededNoise(order.seed),
                        top_logprobs=order.top_logprobs,
                        score_prompt=order.echo,
                    )
                    self._rows[row] = writing
                except Exception as error:  # report it to the client whose prompt caused it
                    self._fail(writing.answer, error)
            with self._changed:
                self._waiting.popleft()

    def _step(self) -> None:
        """Generate one token for each row, and drop the rows that have finished."""
        try:
            tokens: Sequence[Token] = self._engine.step()
        except RowsFailed as error:
            tokens = error.tokens
            for answer in {self._rows[row].answer for row in error.rows}:
                self._fail(answer, error)
        for token in tokens:
            if prompt := self._engine.scored_prompt(token.row):
                self._rows[token.row].echo(prompt)
            if self._rows[token.row].take(token):
                self._drop(token.row)

    def _fail(self, answer: Answer, error: Exception) -> None:
        """End an answer with an error; the rows of all its choices are dropped before the next step."""
        self._post.add(answer, error)
        answer.leave()

    def _drop(self, row: int) -> None:
        del self._rows[row]
        self._engine.drop(row)


# Upper bounds of the histogram's buckets, in seconds.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Prometheus metrics of the server."""

    def __init__(self, scheduler: Scheduler) -> None:
        here = self._all = CollectorRegistry()
        self._requests = Counter("niels_gpt_requests", "requests answered", ["status"], registry=here)
        self._prompt = Counter("niels_gpt_prompt_tokens", "prompt tokens", registry=here)
        self._written = Counter("niels_gpt_generated_tokens", "generated tokens", registry=here)
        self._first = Histogram(
            "niels_gpt_first_text_seconds", "seconds from a request to its first text", buckets=_SECONDS, registry=here
        )
        under_way = Gauge("niels_gpt_answers_under_way", "requests in progress", registry=here)
        under_way.set_function(lambda: scheduler.under_way)
        waiting = Gauge("niels_gpt_answers_waiting", "requests waiting for a slot", registry=here)
        waiting.set_function(lambda: scheduler.waiting)

    def count_request(self, status: int) -> None:
        """Count a response by its HTTP status."""
        self._requests.labels(str(status)).inc()

    def count_prompt(self, tokens: int) -> None:
        """Count the tokens of a prompt."""
        self._prompt.inc(tokens)

    async def timed(self, answer: Answer) -> AsyncIterator[Event]:
        """Yield the events of an answer, recording time to first text (seconds) and generated tokens."""
        start, first = time.perf_counter(), True
        async for event in answer:
            if first:
                self._first.observe(time.perf_counter() - start)
                first = False
            self._written.inc(event.written)
            yield event

    def page(self) -> Response:
        """Return the metrics in Prometheus text format."""
        return Response(generate_latest(self._all), media_type=CONTENT_TYPE_LATEST)
