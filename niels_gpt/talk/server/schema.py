"""Request and response bodies of the OpenAI-compatible API."""

import json
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from niels_gpt.inference.engine import Token
from niels_gpt.inference.sampling import SAMPLING, Sampling
from niels_gpt.talk.notes import Sources
from niels_gpt.talk.talker import Talker, TextChunk

# Request bodies: the supported fields of OpenAI's API, and a few extensions.
#
# Any other field is rejected by name, since a reply that silently ignores it would be wrong. As with OpenAI, null means
# that the field is absent, and `true` is not a number.

_MOST_LOGPROBS, _MOST_BIASES = 20, 1024
_SHOWN = 100  # characters of a field's name quoted in an error message: a client may send a megabyte
_FAIL_FAST = Field(fail_fast=True)
_MOST_BRACKETS = 10_000  # lists and objects in a body; validating more would hold the GIL for too long
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_ID = re.compile("0|[1-9][0-9]{0,8}")


class _Strict(BaseModel):
    """Base of all request bodies.

    Validation stops at the first error, here and by `fail_fast` in lists. pydantic would otherwise collect an error for
    each of the 350,000 items that fit into a body, which takes seconds and gigabytes.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_without_nulls(cls, value: Any) -> Any:
        """Reject the first unknown field by name, and drop fields that are null; a `top_k` of null means no limit."""
        if not isinstance(value, dict):
            return value
        unknown = next((name for name in value if name not in cls.model_fields), None)
        if unknown is not None:
            sentence = "{field} is not supported by this server: leave it out"
            raise PydanticCustomError("unknown_field", sentence, {"field": unknown[:_SHOWN]})
        return {key: item for key, item in value.items() if item is not None or key == "top_k"}


class TextPart(_Strict):
    """Part of a message's content; only text is supported."""

    type: Literal["text"]
    text: str


def _joined(content: Any) -> Any:
    """Join the text parts of a content that comes as a list."""
    return "".join(TextPart.model_validate(part).text for part in content) if isinstance(content, list) else content


class RequestMessage(_Strict):
    """Message of a chat; the role `developer` is read as `system`."""

    role: Annotated[
        Literal["system", "user", "assistant"], BeforeValidator(lambda role: "system" if role == "developer" else role)
    ]
    content: Annotated[str, BeforeValidator(_joined)]


class StreamOptions(_Strict):
    include_usage: bool = False


class Extension(_Strict):
    """Request for sources in the reply: traced spans, and the sections that the question finds."""

    trace: bool = False
    notes: bool = False


class TextFormat(_Strict):
    type: Literal["text"]


def _biases(biases: Any) -> Any:
    """Check the number of biases and their ids before pydantic does, which would collect an error for each."""
    if isinstance(biases, dict):
        if len(biases) > _MOST_BIASES:
            raise PydanticCustomError("too_many", f"{len(biases)} are more than the maximum of {_MOST_BIASES}")
        wrong = next((token for token in biases if not _ID.fullmatch(token)), None)
        if wrong is not None:
            sentence = "its keys must be token ids, as from `POST /tokenize`, not {key}"
            raise PydanticCustomError("no_id", sentence, {"key": repr(wrong[:_SHOWN])})
    return biases


def _listed(value: Any) -> Any:
    """Put a single string, or a flat list of ids, into a list."""
    single = isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], int))
    return [value] if single else value


Stop = Annotated[str, Field(min_length=1, max_length=1024)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Messages = Annotated[list[RequestMessage], _FAIL_FAST]
Ids = Annotated[list[int], _FAIL_FAST]


class Asked(_Strict):
    """Fields that chat and completion requests share."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    # `Sampling` checks the ranges; the bounds here are OpenAI's where those are tighter.
    temperature: float = Field(SAMPLING.temperature, le=2)
    top_p: float = 1.0
    top_k: int | None = SAMPLING.top_k  # extension
    min_p: float = 0.0  # extension, named as in other servers
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)  # likewise; beyond it, float32 logits could overflow
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: Annotated[dict[str, Bias], BeforeValidator(_biases)] = {}
    max_tokens: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=0, lt=2**63)
    n: int = Field(1, ge=1, le=8)
    niels_gpt: Extension = Extension()
    stop: Annotated[list[Stop], Field(max_length=4), BeforeValidator(_listed)] = []
    user: Any = None  # clients send it by default; it could not change a reply

    def sampling(self, *, V: int) -> Sampling:
        """Return the sampling settings for V tokens; raise a ValueError that names the invalid field."""
        biases = {int(token): bias for token, bias in self.logit_bias.items()}
        if foreign := [token for token in biases if token >= V]:
            raise ValueError(f"logit_bias: there is no token {foreign[0]}; token ids are 0 to {V - 1}")
        settings = {field.name: getattr(self, field.name) for field in fields(Sampling)}
        return Sampling(**{**settings, "logit_bias": biases})


class ChatRequest(Asked):
    """Body of `POST /v1/chat/completions`."""

    messages: Messages = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=_MOST_LOGPROBS)
    response_format: TextFormat | None = None
    store: Literal[False] | None = None
    # Ignored like `user`: labels for OpenAI's own records, and a switch for tools, which this server has none of.
    metadata: Any = None
    safety_identifier: Any = None
    parallel_tool_calls: Any = None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self


class CompletionRequest(Asked):
    """Body of `POST /v1/completions`."""

    prompt: Annotated[list[str | Ids], Field(min_length=1, fail_fast=True), BeforeValidator(_listed)]
    logprobs: int | None = Field(None, ge=0, le=_MOST_LOGPROBS)
    max_tokens: int | None = Field(None, ge=0)  # with `echo`, 0 only scores the prompt
    echo: bool = False


class TokenizeRequest(_Strict):
    """Body of `POST /tokenize`: either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages = []

    @model_validator(mode="after")
    def _one_of_them(self) -> "TokenizeRequest":
        if (self.prompt is None) == (not self.messages):
            raise ValueError("give either `prompt` or `messages`")
        return self


Body = TypeVar("Body", ChatRequest, CompletionRequest, TokenizeRequest)


def parse_request(kind: type[Body], body: bytes) -> Body:
    """Return the request in `body`; raise a ValueError that names the field, or says why it is not JSON.

    Uses pydantic's JSON parser: Python's accepts NaN as a number and a lone surrogate as text.
    """
    # Brackets inside strings do not count, but strings are removed only if there are too many: that is cheaper.
    if _brackets(body) > _MOST_BRACKETS and (brackets := _brackets(_STRING.sub(b"", body))) > _MOST_BRACKETS:
        raise ValueError(
            f"the body: its {brackets:,} lists and objects are more than the maximum of {_MOST_BRACKETS:,}"
        )
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])[:_SHOWN] or "the body"
        raise ValueError(f"{where}: {problem['msg'][0].lower()}{problem['msg'][1:]}") from error


def _brackets(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")


class Reply(ABC):
    """Builder of one reply in OpenAI's format, whole or as server-sent events, with its token usage."""

    # Prefix of the reply's id, and the value of `object` in a complete reply and in a streamed event.
    prefix: str
    whole_object: str
    part_object: str
    opening: ClassVar[Mapping[str, Any]] = {}  # what a stream sends of a choice before its text

    def __init__(self, talker: Talker, *, logprobs: bool, prompt_tokens: int, sources: Sources | None, **more: Any):
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.sources, self.prompt_tokens = sources, prompt_tokens
        self._tokenizer, self._wanted = talker.tokenizer, logprobs
        self._head = {"id": self.id, "created": int(time.time()), "model": talker.name, **more}
        # Serialized once, since it is the same in every event and there is an event per token.
        self._part_head = json.dumps({**self._head, "object": self.part_object})[:-1]

    def usage(self, chunks: Sequence[TextChunk]) -> dict[str, int]:
        """Return the token counts of a reply with these choices."""
        written = sum(chunk.written for chunk in chunks)
        total = self.prompt_tokens + written
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": written, "total_tokens": total}

    def whole(self, chunks: Sequence[TextChunk]) -> dict[str, Any]:
        """Return the body of a reply that is not streamed, with the whole text of each choice."""
        choices = [self.choice(n, chunk, whole=True) for n, chunk in enumerate(chunks)]
        return {**self._head, "object": self.whole_object, "choices": choices, "usage": self.usage(chunks)}

    def part(self, choices: Sequence[dict[str, Any]], **more: Any) -> str:
        """Return one server-sent event with these choices."""
        rest = json.dumps({"choices": choices, **more})[1:]
        return f"data: {self._part_head}, {rest}\n\n"

    def choice(self, index: int, chunk: TextChunk, *, whole: bool = False) -> dict[str, Any]:
        """Return the new text of a choice in a stream, or its `whole` text."""
        logprobs = self._logprobs(chunk.tokens) if self._wanted else None
        content = self._content(chunk, whole=whole)
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": chunk.finish}

    @abstractmethod
    def _content(self, chunk: TextChunk, *, whole: bool) -> dict[str, Any]: ...

    @abstractmethod
    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]: ...


class ChatReply(Reply):
    """Reply to a chat."""

    prefix, whole_object, part_object = "chatcmpl", "chat.completion", "chat.completion.chunk"
    opening: ClassVar[Mapping[str, Any]] = {"delta": {"role": "assistant", "content": ""}}

    def _content(self, chunk: TextChunk, *, whole: bool) -> dict[str, Any]:
        if whole:
            return {"message": {"role": "assistant", "content": chunk.text, "refusal": None}}
        return {"delta": {} if chunk.finish else {"content": chunk.text}}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        entries = [
            {**self._one(token.id, token.logprob), "top_logprobs": [self._one(*top) for top in token.top_logprobs]}
            for token in tokens
        ]
        return {"content": entries, "refusal": None}

    def _one(self, id: int, logprob: float | None) -> dict[str, Any]:
        piece = self._tokenizer.piece(id)
        return {"token": piece.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(piece)}


class CompletionReply(Reply):
    """Continuation of a text."""

    prefix, whole_object, part_object = "cmpl", "text_completion", "text_completion"

    def _content(self, chunk: TextChunk, *, whole: bool) -> dict[str, Any]:
        return {"text": chunk.text}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        return {
            "tokens": [self._name(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                None if token.logprob is None else {self._name(id): logprob for id, logprob in token.top_logprobs}
                for token in tokens
            ],
            "text_offset": [token.offset for token in tokens],
        }

    def _name(self, id: int) -> str:
        """Return a token's text, or its bytes as OpenAI writes them; names are keys, so no two tokens share one."""
        piece = self._tokenizer.piece(id)
        try:
            return piece.decode() or f"id:{id}"
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
