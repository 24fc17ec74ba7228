"""The request body: the fields of OpenAI's that mean something here."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class ChatMessage(BaseModel):
    model_config = ConfigDict(strict=True)

    role: Literal["system", "user", "assistant"]
    content: str


class ChatRequest(BaseModel):
    """Other fields are let pass. As with OpenAI, null stands for a field that was left out, and `true` is no number."""

    model_config = ConfigDict(strict=True)

    messages: list[ChatMessage] = Field(min_length=1)
    model: str | None = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=10)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(50, ge=1)  # ours; null is every token
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=0, lt=2**63)
    n: int | None = Field(None, ge=1, le=1)


def parse_request(body: bytes) -> ChatRequest:
    """A ValueError names the field, or says what is not JSON about the body.

    pydantic's own reader: Python's takes NaN for a number and half a surrogate pair for text.
    """
    try:
        return ChatRequest.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"]) or "the body"
        raise ValueError(f"{where}: {problem['msg'][0].lower()}{problem['msg'][1:]}") from error
