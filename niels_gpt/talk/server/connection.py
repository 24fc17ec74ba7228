"""Listening socket and client timeouts: how long a request may take to come whole, and an answer to be taken.

uvicorn by itself waits for ever for the rest of a request that has begun, and for a client that reads no more; each of
them is a file that stays open, and there are only so many.
"""

from __future__ import annotations

import asyncio
import json
import socket

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from niels_gpt.talk.server.refusals import refusal_body

PATIENCE_S = 30


LOOPBACK = "127.0.0.1"  # which this machine alone can reach


def listen(port: int, host: str = LOOPBACK) -> socket.socket:
    """A socket at an address of this machine; port 0 takes a free one. From here on a browser waits instead of being
    refused."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        what = f"port {port}" if host == LOOPBACK else f"port {port} at {host!r}"
        raise ValueError(f"{what} cannot be had ({error.strerror}): choose another with --port or --host") from error
    return listening


def make_server(app: ASGIApp, *, patience_s: int = PATIENCE_S) -> uvicorn.Server:
    """`patience_s` is what a client has for a whole request, and for each time that it leaves an answer unread."""
    return uvicorn.Server(
        uvicorn.Config(app, http=Connection, ws="none", timeout_keep_alive=patience_s, log_level="warning")
    )


class Connection(H11Protocol):
    """uvicorn's connection with a clock that runs whenever it is the client's turn."""

    _clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch(anew=True)

    def data_received(self, data: bytes) -> None:
        begins = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        super().data_received(data)
        self._watch(anew=begins)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch(anew=True)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(anew=True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """At the end of the server: what is under way ends, too, instead of holding it up."""
        self._close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "what came is not HTTP")

    def _watch(self, *, anew: bool = False) -> None:
        cycle = self.cycle
        ours = cycle and not (cycle.more_body or cycle.response_complete or self.flow.write_paused)
        if ours or anew:
            self._stop_clock()
        if not ours and self._clock is None:
            self._clock = self.loop.call_later(self.timeout_keep_alive, self._give_up)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _give_up(self) -> None:
        began = self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]
        if began and not self.flow.write_paused:
            self._refuse(408, f"the request was not whole after {self.timeout_keep_alive} seconds: send it again")
        else:
            self._close()

    def _refuse(self, status: int, message: str) -> None:
        """Said here, since no application has been asked; nothing where one has begun to answer."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [("content-type", "application/json"), ("connection", "close")]
            for event in (
                h11.Response(status_code=status, headers=headers),
                h11.Data(data=json.dumps(refusal_body(status, message)).encode()),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self._close()

    def _close(self) -> None:
        """A transport closes when all is sent, which never happens where nobody reads."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()
