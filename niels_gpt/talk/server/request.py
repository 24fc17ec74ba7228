"""Request bodies: the fields of OpenAI's that are honoured here, a few of our own, and no others.

A field that is not honoured is refused by name: an answer that silently lacks what was asked for is a wrong one. As
with OpenAI, null stands for a field that was left out, and `true` is no number.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from niels_gpt.inference.sampling import Sampling
from niels_gpt.talk.talker import SAMPLING

MOST_CHOICES, MOST_STOPS, MOST_LOGPROBS = 8, 4, 20


def _without_nulls(value: Any) -> Any:
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    _nulls = model_validator(mode="before")(_without_nulls)


class _Named(_Strict):
    """A body; it may name the model."""

    model: str | None = None


class TextPart(_Strict):
    type: Literal["text"]
    text: str


def _joined(content: Any) -> Any:
    """Content may come in parts; those of text are one text."""
    return "".join(TextPart.model_validate(part).text for part in content) if isinstance(content, list) else content


class ChatMessage(_Strict):
    role: Annotated[
        Literal["system", "user", "assistant"], BeforeValidator(lambda role: {"developer": "system"}.get(role, role))
    ]
    content: Annotated[str, BeforeValidator(_joined)]


class StreamOptions(_Strict):
    include_usage: bool = False


class TextFormat(_Strict):
    type: Literal["text"]


Stop = Annotated[str, Field(min_length=1)]


class Asked(_Named):
    """What a chat and a plain text may both ask for."""

    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    # What these may be, `Sampling` says; here stands what OpenAI bounds more tightly.
    temperature: float = Field(SAMPLING.temperature, le=10)
    top_p: float | None = None
    top_k: int | None = SAMPLING.top_k  # ours; null is every token
    min_p: float | None = None  # ours, as in other servers
    repetition_penalty: float = 1.0  # the same
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = {}
    max_tokens: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=0, lt=2**63)
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] = []

    @model_validator(mode="before")
    @classmethod
    def _every_token(cls, value: Any) -> Any:
        """A top_k of null is not one that was left out."""
        every = isinstance(value, dict) and "top_k" in value and value["top_k"] is None
        return {**value, "top_k": 2**31 - 1} if every else value

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def sampling(self) -> Sampling:
        """A ValueError names the field that cannot be."""
        try:
            bias = {int(token): value for token, value in self.logit_bias.items()}
        except ValueError as error:
            raise ValueError(
                f"logit_bias: its keys are ids of tokens, as `POST /tokenize` gives them: {error}"
            ) from error
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=bias,
        )


class ChatRequest(Asked):
    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    response_format: TextFormat | None = None
    store: Literal[False] | None = None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self


class CompletionRequest(Asked):
    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)


class TokenizeRequest(_Named):
    prompt: str | None = None
    messages: list[ChatMessage] = []

    @model_validator(mode="after")
    def _one_of_them(self) -> TokenizeRequest:
        if (self.prompt is None) == (not self.messages):
            raise ValueError("give either `prompt` or `messages`")
        return self


Body = TypeVar("Body", bound=_Named)


def parse_request(kind: type[Body], body: bytes) -> Body:
    """A ValueError names the field, or says what is not JSON about the body.

    pydantic's own reader: Python's takes NaN for a number and half a surrogate pair for text.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"]) or "the body"
        if problem["type"] == "extra_forbidden":
            raise ValueError(f"{where} is not supported by this server: leave it out") from error
        raise ValueError(f"{where}: {problem['msg'][0].lower()}{problem['msg'][1:]}") from error
