"""niels-gpt report: the last run's page with its provenance, and a live page from the logs."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from niels_gpt.cli.console import refuse_foreign
from niels_gpt.files.atomic import write_text
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
    rows = []
    for stage, run in ((stage, run) for stage, run in found.items() if run is not None):
        ended = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.last.time))
        took = format_duration(run.seconds) if run.seconds else ""
        rows.append([stage, ended, *(said or "not logged" for said in (took, run.last.machine, run.last.commit))])
    table = render_table(("training", "ended", "took", "machine", "commit"), rows) if rows else ""
    missing = ", ".join(stage for stage, run in found.items() if run is None)
    where = "in this checkout: the weights came from a cache or from another machine."
    note = f'<p class="note">No log of {missing} {where}</p>' if missing else ""
    return f"<section><h2>When and where</h2>{table}{note}</section>" if found else ""


def write_report(path: Path) -> None:
    """Write the pipeline's report page, with provenance and spliced documents, to a new file or an earlier report."""
    refuse_foreign(path, *TITLES)
    if not layout.REPORT.is_file():
        raise ValueError(f"there is no {layout.REPORT} yet: run `dvc repro` first")
    runs, _ = read_logs(layout.LOGS)
    histories = {stage: folder / layout.HISTORY for stage, folder in layout.MODEL_OF.items()}
    origins = {stage: run_of(History.read(it), runs, stage=stage) for stage, it in histories.items() if it.is_file()}
    page = read_text(layout.REPORT).replace(ORIGIN, render_origin(origins), 1).replace(SPLICE, _splice(), 1)
    write_text(path, page)


def _splice() -> str:
    if not layout.MEMORIZED.is_file() or is_left_out(layout.EXTRACTION):
        return ""
    settings, facts = read_params()[0].memorize, read_metrics(layout.MEMORIZED, required=["documents"])
    strips = {}
    for stats in facts["documents"]:
        rows = read_tsv(layout.EXTRACTION / f"{stats['name']}.tsv")
        starts, after = np.array([int(row["start"]) for row in rows]), np.array([row["pz_after"] for row in rows])
        strips[stats["name"]] = highest_by_token(after, starts, settings, L=stats["after"]["doc_len"])
    return render_splice(facts, strips, settings)


# `niels-gpt report --live`: a read-only page about runs, served live from their logs to this machine alone.

_UNCACHED = {"cache-control": "no-store"}
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
        try:
            asked = [part.rsplit(":", 2) for part in request.query_params.getlist("have")]
            have = {(name, int(revision)): int(points) for name, revision, points in asked}
        except ValueError:
            return refusal(400, "`have` is RUN:REVISION:POINTS")
        now, (runs, unread) = time.time(), read_logs(logs)
        present = present_runs(runs, list(layout.MODEL_OF))
        cards = [
            live_card(run, now=now, since=have.get((run.name, run.revision), 0), shown=run.name in present)
            for run in runs
        ]
        return JSONResponse({"runs": cards, "unread": unread}, headers=_UNCACHED)

    return Starlette(routes=[Route("/", show), Route("/runs", tell)], middleware=[Middleware(Gate)])
