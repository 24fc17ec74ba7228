"""What the server counts of itself, for Prometheus: requests, tokens, answers under way, time to the first token."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from niels_gpt.talk.server.scheduler import Answer, Event, Scheduler

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
