"""The HTTP application: a web page to chat with, and an OpenAI-compatible API for the same model."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as AnyHTTPException

from niels_gpt.report.page import WEB
from niels_gpt.talk.server.gate import Access, Gate
from niels_gpt.talk.server.metrics import Metrics
from niels_gpt.talk.server.refusals import refusal, refuse
from niels_gpt.talk.server.scheduler import Scheduler
from niels_gpt.talk.server.service import Limits, Service
from niels_gpt.talk.talker import Talker

STATIC = Path(__file__).with_name("static")


def build_app(
    talker: Talker, *, card: dict[str, Any], limits: Limits | None = None, access: Access | None = None
) -> FastAPI:
    """`card` is what the page shows of the model."""
    limits = limits or Limits()
    scheduler = Scheduler(talker.engine, talker.tokenizer, slots=talker.slots, queue=limits.queue)
    metrics = Metrics(scheduler)
    service = Service(talker, scheduler, metrics, limits)
    entry: dict[str, Any] = {"id": talker.name, "object": "model", "created": 0, "owned_by": "niels_gpt"}
    entry["max_model_len"] = talker.model.cfg.T  # as other servers call the context

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # What is there at the start stays. Left to the garbage collector, it is gone through whenever a large request
        # makes many objects, for 0.2 s a time, and no thread runs meanwhile.
        gc.collect()
        gc.freeze()
        yield
        scheduler.close()

    app = FastAPI(title="niels_gpt", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Gate, body_bytes=limits.body_bytes, access=access, count=metrics.count_request)
    # Starlette's, which FastAPI's is one of: a page that is not there and a method that is not allowed are said by it.
    app.add_exception_handler(AnyHTTPException, refuse)  # type: ignore[arg-type]  # of these errors alone
    app.add_exception_handler(Exception, lambda _, error: refusal(500, f"this is an error of the server: {error!r}"))

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.get("/card")
    def show_card() -> dict[str, Any]:
        return {**card, "answers under way": scheduler.under_way}

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    def show_metrics() -> Response:
        return metrics.page()

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [entry]}

    @app.get("/v1/models/{name:path}")
    def model(name: str) -> dict[str, Any]:
        service.check_name(name)
        return entry

    app.post("/tokenize")(service.tokenize)
    app.post("/v1/chat/completions")(service.chat)
    app.post("/v1/completions")(service.complete)
    for name, folder in {"static": STATIC, "web": WEB}.items():
        app.mount(f"/{name}", StaticFiles(directory=folder), name=name)
    return app
