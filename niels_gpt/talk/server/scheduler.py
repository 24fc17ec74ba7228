"""Round-robin scheduling of answers: a token of each in turn, so that a long one never holds up a short one."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from niels_gpt.talk.talker import ReplyPart


class Busy(RuntimeError):
    """As many answers as there may be at once are under way."""


@dataclass(eq=False)
class Answer:
    """One under way. Its pieces go to whoever asked, in that one's event loop; None is the end."""

    pieces: Iterator[ReplyPart]
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[ReplyPart | Exception | None] = field(default_factory=asyncio.Queue)
    wanted: bool = True

    def send(self, item: ReplyPart | Exception | None) -> None:
        try:
            self.loop.call_soon_threadsafe(self.queue.put_nowait, item)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self.leave()

    async def __aiter__(self) -> AsyncIterator[ReplyPart]:
        while (item := await self.queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    def leave(self) -> None:
        """Whoever asked wants no more of it: the work on it ends."""
        self.wanted = False


class Scheduler:
    """The one thread that runs the model: torch is not asked from two threads at once."""

    def __init__(self, *, at_once: int) -> None:
        self._at_once = at_once
        self._waiting: deque[Answer] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    def answer(self, pieces: Iterator[ReplyPart]) -> Answer:
        """The pieces, as their turn comes; or Busy, at once. Whoever stops listening early has to `leave`."""
        answer = Answer(pieces, asyncio.get_running_loop())
        with self._changed:
            if len(self._waiting) >= self._at_once:
                raise Busy(f"{self._at_once} answers are being written; ask again in a moment")
            self._waiting.append(answer)
            self._changed.notify()
        return answer

    @property
    def under_way(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    return
                answer = self._waiting[0]
            done = not answer.wanted or self._advance(answer)
            if done:
                answer.pieces = iter(())  # nobody holds the generator now: it ends, with what it holds of the model
            with self._changed:
                self._waiting.popleft()
                if not done:
                    self._waiting.append(answer)

    @staticmethod
    def _advance(answer: Answer) -> bool:
        """One token more; True where there is none."""
        try:
            answer.send(next(answer.pieces))
        except StopIteration:
            answer.send(None)
            return True
        except Exception as error:  # whatever it is, it belongs to whoever asked, and the thread goes on
            answer.send(error)
            return True
        return False
