"""An engine that several readers share, each with a stream of its own: whoever asks for a token makes all others get
theirs, too."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from niels_gpt.inference.engine import Engine, Token
from niels_gpt.inference.noise import Source
from niels_gpt.inference.sampling import Sampling


class Streams:
    """Streams of tokens out of one engine. Readers may take turns in any way; of one that pauses, one token is kept."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ready: dict[int, Token | None] = {}

    def stream(
        self, prompt: Sequence[int], sampling: Sampling, *, noise: Source, max_new_tokens: int
    ) -> Generator[int, None, None]:
        """The ids of one row, which ends with them or when the stream is closed."""
        row = self._engine.add(prompt, sampling, noise=noise)
        self._ready[row] = None
        try:
            for _ in range(max_new_tokens):
                yield self._next(row)
        finally:
            del self._ready[row]
            self._engine.drop(row)

    def _next(self, row: int) -> int:
        if self._ready[row] is None:
            waiting = [other for other, token in self._ready.items() if token is None]
            self._ready.update((token.row, token) for token in self._engine.step(waiting))
        token, self._ready[row] = self._ready[row], None
        assert token is not None
        return token.id
