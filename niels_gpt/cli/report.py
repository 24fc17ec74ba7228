"""niels-gpt report: the last run's page with its provenance, and a live page from the logs."""

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from niels_gpt.cli.console import refuse_foreign
from niels_gpt.files.atomic import write_text
from niels_gpt.files.checks import described_by
from niels_gpt.files.messages import format_duration, read_text
from niels_gpt.leak.memorized import highest_by_token, render_splice
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import read_params
from niels_gpt.pipeline.results import is_left_out, read_metrics
from niels_gpt.report.history import History
from niels_gpt.report.page import ORIGIN, REPORT_TITLE, SPLICE, live_card, render_page, render_table
from niels_gpt.report.runs import Run, present_runs, read_logs
from niels_gpt.report.tables import read_tsv
from niels_gpt.talk.server.access import Gate, refusal

# Provenance: when, where and from which commit the models were trained. The pipeline's results must not contain it,
# since equal inputs give equal bytes. It is looked up in the logs instead: a model belongs to the run that logged the
# losses in the model's history.

REPORT_FILE = Path("report.html")
TITLES = (REPORT_TITLE, "What was trained")  # the second was the title of earlier versions
_HEAD = ("training", "ended", "took", "machine", "commit")


def run_of(history: History, runs: Sequence[Run], *, stage: str) -> Run | None:
    """Return the finished run that logged the losses of a model's history, the latest if several did."""
    losses = history.losses
    same = [
        run
        for run in runs
        if run.stage == stage and run.finished and run.last.step == len(losses)
        if all(point.loss == losses[point.step - 1] for point in run.points)
    ]
    return max(same, key=lambda run: run.last.time, default=None)


def render_origin(found: Mapping[str, Run | None]) -> str:
    """Render the provenance section of the page, a table row per training."""
    rows, missing, note = [], [], ""
    for stage, run in found.items():
        if run is None:
            missing.append(stage)
            continue
        ended = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.last.time))
        took = format_duration(run.seconds) if run.seconds else ""
        rows.append([stage, ended, *(said or "not logged" for said in (took, run.last.machine, run.last.commit))])
    if missing:
        where = "in this checkout: the weights came from a cache or from another machine."
        note = f'<p class="note">No log of {", ".join(missing)} {where}</p>'
    table = render_table(_HEAD, rows) if rows else ""
    return f"<section><h2>When and where</h2>{table}{note}</section>" if found else ""


def full_report() -> str:
    """Return the pipeline's report page with the sections on provenance and on spliced documents filled in."""
    if not layout.REPORT.is_file():
        raise ValueError(f"there is no {layout.REPORT} yet: run `dvc repro` first")
    runs, _ = read_logs(layout.LOGS)
    histories = {stage: folder / layout.HISTORY for stage, folder in layout.MODEL_OF.items()}
    origins = {stage: run_of(History.read(it), runs, stage=stage) for stage, it in histories.items() if it.is_file()}
    return read_text(layout.REPORT).replace(ORIGIN, render_origin(origins), 1).replace(SPLICE, _splice(), 1)


def write_report(path: Path) -> None:
    """Write the full report to a file, which must not exist or be an earlier report."""
    refuse_foreign(path, *TITLES)
    write_text(path, full_report())


def _splice() -> str:
    if not layout.MEMORIZED.is_file() or is_left_out(layout.EXTRACTION):
        return ""
    settings, facts = read_params()[0].memorize, read_metrics(layout.MEMORIZED, required=["documents"])
    window = {"chunk_size": settings.chunk_size, "prompt_tokens": settings.prompt_tokens}
    strips = {}
    with described_by(layout.MEMORIZED):
        for stats in facts["documents"]:
            rows = read_tsv(layout.EXTRACTION / f"{stats['name']}.tsv")
            starts, after = np.array([int(row["start"]) for row in rows]), np.array([row["pz_after"] for row in rows])
            strips[stats["name"]] = highest_by_token(after, starts, L=stats["after"]["doc_len"], **window)
        return render_splice(facts, strips, window=window)


# `niels-gpt report --live`: a read-only page about runs, served live from their logs to this machine alone.

_UNCACHED = {"cache-control": "no-store"}
_HAVE = re.compile(r"(.+):(\d{1,15}):(\d{1,15})", re.DOTALL)
_NONE = """<section id="none" hidden><h2>No run yet</h2>
<p>No run is logged in <code>logs/</code> so far. Run <code>dvc repro</code> in the same folder: this page shows each
training from its first log line on, which comes after <code>runtime.log_every</code> steps.</p></section>
<p id="unread" class="note" hidden></p>"""


def build_watch(logs: Path) -> Starlette:
    """Build the app that serves the page at `/` and updates of its runs at `/runs`."""
    page = render_page("Runs of this checkout", cards=[], live=True, before=_NONE)

    async def show(_: Request) -> Response:
        return HTMLResponse(page, headers=_UNCACHED)

    async def tell(request: Request) -> Response:
        have = read_have(request.query_params.getlist("have"))
        now, (runs, unread) = time.time(), read_logs(logs)
        present = present_runs(runs, list(layout.MODEL_OF))
        cards = [
            live_card(run, now=now, since=have.get((run.name, run.revision), 0), shown=run.name in present)
            for run in runs
        ]
        return JSONResponse({"runs": cards, "unread": unread}, headers=_UNCACHED)

    def refuse(_: Request, error: Any) -> Response:
        return refusal(error.status_code, error.detail, headers=error.headers)

    return Starlette(
        routes=[Route("/", show), Route("/runs", tell)],
        middleware=[Middleware(Gate, body_bytes=0)],
        exception_handlers={HTTPException: refuse},
    )


def read_have(parts: Sequence[str]) -> dict[tuple[str, int], int]:
    """Parse RUN:REVISION:POINTS of a page into {(run, revision): points it has}; raise HTTP 400 if malformed."""
    found = [_HAVE.fullmatch(part) for part in parts]
    if not all(found):
        raise HTTPException(400, "`have` is RUN:REVISION:POINTS")
    return {(match[1], int(match[2])): int(match[3]) for match in found if match}
