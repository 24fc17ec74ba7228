"""Continuous batching of the answers under way, and the server's Prometheus metrics."""

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
from niels_gpt.talk.talker import Piece, StreamedText
from niels_gpt.tokenizer.vocabulary import Tokenizer

Finish = Literal["stop", "length"]
_MOMENT_S = 0.01  # at most, before the next step begins
_TURNS = 6  # of the event loop: a client who has just come is accepted, read and understood in so many


class Busy(RuntimeError):
    """As many answers as may wait are waiting."""


@dataclass(frozen=True)
class Order:
    """What is asked for: one row of the engine, and where it ends."""

    prompt: Sequence[int]
    sampling: Sampling
    seed: int
    max_new_tokens: int
    stops: tuple[str, ...] = ()
    top_logprobs: int | None = None


@dataclass(frozen=True)
class Event:
    """Of one choice of an answer: a piece of it, and at its end why it ended."""

    choice: int
    piece: Piece
    finish: Finish | None = None
    written: int = 0  # tokens in all, at its end


@dataclass(eq=False)
class Answer:
    """One under way, of one or more choices. Events go to whoever asked, in that one's event loop."""

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
        """Whoever asked wants no more of it: the work on it ends."""
        self.wanted = False


class _Post:
    """Events on their way to event loops: those of a step together, since each time a loop is woken costs as much as
    some operations of the model."""

    def __init__(self) -> None:
        self._items: dict[asyncio.AbstractEventLoop, list[tuple[Answer, Event | Exception]]] = {}

    def add(self, answer: Answer, item: Event | Exception) -> None:
        self._items.setdefault(answer.loop, []).append((answer, item))

    def send(self) -> None:
        """They are on the wire when this returns, and whoever has just come may join the next step. Python runs one
        thread at a time: beside a step of the model each write would wait for its turn, and the step for every write
        (eight clients: a tenth more tokens a second)."""
        posted, self._items = self._items, {}
        for loop, items in posted.items():
            sent = threading.Event()
            try:
                loop.call_soon_threadsafe(_deliver, items, sent)
            except RuntimeError:  # the loop is closed: nobody listens any more
                for answer, _ in items:
                    answer.leave()
            else:
                sent.wait(_MOMENT_S)


def _deliver(items: Sequence[tuple[Answer, Event | Exception]], sent: threading.Event) -> None:
    for answer, item in items:
        answer.queue.put_nowait(item)
    _after_turns(_TURNS, sent.set)


def _after_turns(turns: int, call: Callable[[], None]) -> None:
    """So many turns of the event loop later."""
    loop = asyncio.get_running_loop()
    loop.call_soon(*((_after_turns, turns - 1, call) if turns > 1 else (call,)))


class _Writing:
    """A choice under way: its order, its text so far."""

    def __init__(self, answer: Answer, choice: int, order: Order, tokenizer: Tokenizer, post: _Post) -> None:
        self.answer, self.order, self._choice, self._post = answer, order, choice, post
        self._text = StreamedText(tokenizer, order.stops)
        self._ends = frozenset(tokenizer.special_token_ids().values())
        self._written = 0

    def take(self, token: Token) -> bool:
        """Post what a token makes certain; True where it is the last."""
        if token.id in self._ends:
            return self._end("stop", self._text.rest())
        self._written += 1
        piece = self._text.add(token)
        if self._text.stopped:
            return self._end("stop", piece)
        if self._written == self.order.max_new_tokens:
            rest = self._text.rest()
            reason: Finish = "stop" if self._text.stopped else "length"
            return self._end(reason, Piece(piece.text + rest.text, piece.tokens + rest.tokens))
        if piece.text or piece.tokens:
            self._post.add(self.answer, Event(self._choice, piece))
        return False

    def _end(self, reason: Finish, piece: Piece) -> bool:
        self._post.add(self.answer, Event(self._choice, piece, reason, self._written))
        return True


class Scheduler:
    """The one thread that runs the model: torch is not asked from two threads at once."""

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
        """All choices of an answer, as they come; or Busy, at once. Whoever stops listening early has to `leave`."""
        answer = Answer(len(orders), asyncio.get_running_loop())
        with self._changed:
            self.check_room(len(orders))
            self._waiting += (_Writing(answer, n, order, self._tokenizer, self._post) for n, order in enumerate(orders))
            self._changed.notify()
        return answer

    def check_room(self, choices: int = 1) -> None:
        """Raise Busy if so many more choices may not wait."""
        with self._changed:
            waiting = sum(writing.answer.wanted for writing in self._waiting)
        if waiting + choices > self._most:
            raise Busy(f"{waiting} answers are waiting already; ask again in a moment")

    @property
    def under_way(self) -> int:
        return len(self._rows)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
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
            except Exception as error:  # of the whole step: all who were being answered get it, and the thread goes on
                for answer in {writing.answer for writing in self._rows.values()}:
                    self._fail(answer, error)
            self._post.send()

    def _admit(self) -> None:
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
                        order.prompt, order.sampling, noise=SeededNoise(order.seed), top_logprobs=order.top_logprobs
                    )
                    self._rows[row] = writing
                except Exception as error:  # whatever it is, it belongs to whoever asked
                    self._fail(writing.answer, error)
            with self._changed:
                self._waiting.popleft()

    def _step(self) -> None:
        try:
            tokens: Sequence[Token] = self._engine.step()
        except RowsFailed as error:
            tokens = error.tokens
            for answer in {self._rows[row].answer for row in error.rows}:
                self._fail(answer, error)
        for token in tokens:
            if self._rows[token.row].take(token):
                self._drop(token.row)

    def _fail(self, answer: Answer, error: Exception) -> None:
        """End an answer with an error; before the next step the rows of all its choices are dropped."""
        self._post.add(answer, error)
        answer.leave()

    def _drop(self, row: int) -> None:
        del self._rows[row]
        self._engine.drop(row)


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    def __init__(self, scheduler: Scheduler) -> None:
        here = self._all = CollectorRegistry()
        self._requests = Counter("niels_gpt_requests", "requests answered", ["status"], registry=here)
        self._prompt = Counter("niels_gpt_prompt_tokens", "tokens of prompts", registry=here)
        self._written = Counter("niels_gpt_generated_tokens", "tokens written", registry=here)
        self._first = Histogram(
            "niels_gpt_first_text_seconds", "from a request to its first text", buckets=_SECONDS, registry=here
        )
        under_way = Gauge("niels_gpt_answers_under_way", "answers being written", registry=here)
        under_way.set_function(lambda: scheduler.under_way)
        waiting = Gauge("niels_gpt_answers_waiting", "answers that wait for a slot", registry=here)
        waiting.set_function(lambda: scheduler.waiting)

    def count_request(self, status: int) -> None:
        self._requests.labels(str(status)).inc()

    def count_prompt(self, tokens: int) -> None:
        self._prompt.inc(tokens)

    async def timed(self, answer: Answer) -> AsyncIterator[Event]:
        """The events of an answer, counted as they pass."""
        start, first = time.perf_counter(), True
        async for event in answer:
            if first:
                self._first.observe(time.perf_counter() - start)
                first = False
            self._written.inc(event.written)
            yield event

    def page(self) -> Response:
        return Response(generate_latest(self._all), media_type=CONTENT_TYPE_LATEST)
