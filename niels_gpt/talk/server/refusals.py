"""Error responses, always in the form of OpenAI's errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse


def refusal(status: int, message: str, *, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(refusal_body(status, message), status_code=status, headers=headers)


def refusal_body(status: int, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}
