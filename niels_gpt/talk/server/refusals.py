"""Error responses, always in the form of OpenAI's errors."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request


def refusal(
    status: int, message: str, *, headers: Mapping[str, str] | None = None, code: str | None = None
) -> JSONResponse:
    return JSONResponse(refusal_body(status, message, code=code), status_code=status, headers=headers)


def refusal_body(status: int, message: str, *, code: str | None = None) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def refuse(request: Request, error: HTTPException) -> JSONResponse:
    """What a handler refuses has its sentence; the router's own refusals get theirs here, with OpenAI's codes."""
    status, message, code = error.status_code, error.detail, None
    asked, by_the_router = f"{request.method} {request.url.path[:100]}", message == HTTPStatus(status).phrase
    if status == 404:
        code = "unknown_url" if by_the_router else "model_not_found"
        message = f"there is no {asked} here; docs/serve.md has all that there is" if by_the_router else message
    elif status == 405 and by_the_router:
        allowed = (error.headers or {}).get("Allow", "GET, HEAD")  # files, which do not say it themselves
        code, message = "method_not_supported", f"there is no {asked} here, but {allowed}"
    return refusal(status, message, headers=error.headers, code=code)
