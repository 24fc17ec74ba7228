"""`niels-gpt watch`: the page about runs, served live from their logs, to this machine alone. It can only be read."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from niels_gpt.report.cards import live_card
from niels_gpt.report.page import render_page
from niels_gpt.report.runs import Logs
from niels_gpt.talk.server.gate import Gate
from niels_gpt.talk.server.refusals import refusal

_UNCACHED = {"cache-control": "no-store"}
_HAVE = re.compile(r"(.+):(\d{1,15}):(\d{1,15})", re.DOTALL)
_NONE = """<section id="none" hidden><h2>No run yet</h2>
<p>No run is logged in <code>logs/</code> so far. Run <code>dvc repro</code> in the same folder: this page shows each
training from its first log line on, which comes after <code>runtime.log_every</code> steps.</p></section>
<p id="unread" class="note" hidden></p>"""


def build_watch(logs: Path) -> Starlette:
    """The page at `/`, and what its runs have new at `/runs`."""
    # Revisions of another server, which a page that was left open may still name, are none of this one's.
    known = Logs(logs, first_revision=time.time_ns() // 1_000_000)
    page = render_page("Runs of this checkout", cards=[], live=True, before=_NONE)

    async def show(_: Request) -> Response:
        return HTMLResponse(page, headers=_UNCACHED)

    async def tell(request: Request) -> Response:
        have = read_have(request.query_params.getlist("have"))
        known.read_on()
        now = time.time()
        cards = [live_card(run, now=now, since=have.get((run.name, run.revision), 0)) for run in known.runs]
        return JSONResponse({"runs": [card.told() for card in cards], "unread": known.unread}, headers=_UNCACHED)

    def refuse(_: Request, error: Any) -> Response:
        return refusal(error.status_code, error.detail, headers=error.headers)

    return Starlette(
        routes=[Route("/", show), Route("/runs", tell)],
        middleware=[Middleware(Gate, body_bytes=0)],
        exception_handlers={HTTPException: refuse},
    )


def read_have(parts: Sequence[str]) -> dict[tuple[str, int], int]:
    """{(run, revision): how many of its points are there} of what a page says as RUN:REVISION:POINTS."""
    found = [_HAVE.fullmatch(part) for part in parts]
    if not all(found):
        raise HTTPException(400, "`have` is RUN:REVISION:POINTS")
    return {(match[1], int(match[2])): int(match[3]) for match in found if match}
