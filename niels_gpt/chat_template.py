"""Chat formats: one renderer per model makes prompts, fine-tuning examples, loss masks and stop ids.

- `chat_tokens`: each message is its role id, its content's ids and the end-of-turn id. For fine-tuned models that were
  pretrained from scratch; `format_chat`, `format_prompt` and `extract_assistant_reply` are its functions.
- `transcript`: plain text (`niels_gpt.chat_format`), for models from scratch that never saw a chat.
- `chatml`: the template of pretrained models with the control tokens <|im_start|> and <|im_end|>.

What people wrote is always encoded as plain text: no content can contain a control token.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import takewhile
from typing import Any, Literal, TypedDict

import numpy as np

from niels_gpt import chat_format
from niels_gpt.config import Renderer
from niels_gpt.tokenizer.pretrained import HFTokenizer, renderer_for
from niels_gpt.tokenizer.vocabulary import Tokenizer


class Message(TypedDict):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


Messages = Sequence[Mapping[str, Any]]  # a Message each, or as parsed from JSON
_ROLE_TOKENS = {"system": "sys", "user": "usr", "assistant": "asst"}


def format_chat(tok: Tokenizer, messages: Messages) -> list[int]:
    """Return the ids of all messages, with the role and end-of-turn tokens."""
    special = tok.special_token_ids()
    ids: list[int] = []
    for message in messages:
        _check_role(message)
        ids += [special[_ROLE_TOKENS[message["role"]]], *tok.encode(message["content"]), special["eot"]]
    return ids


def format_prompt(tok: Tokenizer, messages: Messages) -> list[int]:
    """Return the chat's ids followed by the assistant's role id, ready for generation."""
    return [*format_chat(tok, messages), tok.special_token_ids()["asst"]]


def extract_assistant_reply(tok: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Return the ids after the last assistant id, up to the next special id or the end; [] if there are none."""
    return ChatTokens(tok).reply(ids)


def supervised(ids: np.ndarray, *, asst_id: int | Sequence[int], eot_id: int) -> np.ndarray:
    """Return the loss mask of `(B, n)` ids: True after an assistant id, up to and including the next end of turn.

    `asst_id` may be several ids in a row. Each one's end gets an odd number that grows with its position, each end of
    turn an even one. The lowest bit of the running maximum before a position then says which of the two came last,
    without a Python loop over tokens.
    """
    *before, last = [asst_id] if isinstance(asst_id, int) else asst_id
    begun = ids == last
    for back, id in enumerate(reversed(before), start=1):
        begun[:, :back] = False
        begun[:, back:] &= ids[:, :-back] == id
    places = np.arange(1, ids.shape[1] + 1, dtype=np.int32) * 2
    marks = np.where(begun, places + 1, np.where(ids == eot_id, places, 0))
    inside = np.zeros(ids.shape, dtype=bool)
    inside[:, 1:] = np.maximum.accumulate(marks, axis=1)[:, :-1] & 1
    return inside


class ChatRenderer(ABC):
    """Chat format of a model. `answer`: ids before an assistant's content; `end`: the id that ends its turn."""

    answer: tuple[int, ...]
    end: int
    stop_texts: tuple[str, ...] = ()  # strings that end an answer, for formats without control tokens

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special_token_ids()
        self.answer, self.end = (), self._special["eot"]

    def prompt(self, messages: Messages) -> list[int]:
        """Return the ids up to where the assistant's answer begins."""
        return [*self.example(messages), *self.answer]

    @abstractmethod
    def example(self, messages: Messages) -> list[int]:
        """Return the ids of a whole chat, for fine-tuning."""

    def reply(self, ids: Sequence[int], *, first: bool = False) -> list[int]:
        """Return the content of the last assistant turn, or of the first, up to the next special id or the end."""
        listed, begin = list(ids), list(self.answer)
        ends = [i + len(begin) for i in range(len(listed)) if listed[i : i + len(begin)] == begin]
        after = listed[ends[0 if first else -1] :] if ends else []
        return list(takewhile(lambda token: token not in self._special.values(), after))

    def texts(self, ids: np.ndarray) -> list[str]:
        """Return the texts of a document or chat between its special tokens."""
        places = np.flatnonzero(np.isin(ids, list(self._special.values())))
        return [self._tokenizer.decode(part) for part in np.split(ids, places)]

    def contents(self, ids: np.ndarray) -> tuple[str, np.ndarray]:
        """Return the concatenated contents of all messages, and the number of their bytes in each token."""
        return self._tokenizer.decode(ids), self._token_bytes[ids]

    @cached_property
    def _token_bytes(self) -> np.ndarray:
        return self._tokenizer.token_bytes()


class ChatTokens(ChatRenderer):
    """Format with one token per role."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.answer = (self._special["asst"],)

    def example(self, messages: Messages) -> list[int]:
        return format_chat(self._tokenizer, messages)


class Transcript(ChatRenderer):
    """Plain text. No model is fine-tuned on it, so there are only prompts."""

    stop_texts = tuple(f"\n{role}: " for role in chat_format.ROLES)  # where the next turn begins

    def prompt(self, messages: Messages) -> list[int]:
        return self._tokenizer.encode(chat_format.format_chat(messages))

    def example(self, messages: Messages) -> list[int]:
        raise ValueError("no model is fine-tuned on transcripts: use a tokenizer with chat tokens or ChatML")


_START, _END = "<|im_start|>", "<|im_end|>"
# Used where a tokenizer with the two control tokens has no template of its own.
_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class ChatML(ChatRenderer):
    r"""Format of <|im_start|>role\ncontent<|im_end|>\n turns, with the system message that the template adds.

    A prompt has the ids that transformers' `apply_chat_template` gives, as long as no content names a control token.
    The assistant's content is encoded apart from its header, also in examples: generation begins at that boundary.
    """

    _tokenizer: HFTokenizer

    def __init__(self, tokenizer: HFTokenizer) -> None:
        super().__init__(tokenizer)
        if not {"im_start", "im_end"} <= set(self._special):
            raise ValueError(
                f"{tokenizer.model_path} has no tokens {_START} and {_END}: only chats in the format ChatML can be used"
            )
        self._start, self.end = self._special["im_start"], self._special["im_end"]
        self.answer = (self._start, *tokenizer.encode("assistant\n"))

    @property
    def template(self) -> str:
        """Return the Jinja template, as it came with the model."""
        return self._tokenizer.chat_template or _CHATML

    @cached_property
    def system(self) -> str | None:
        """Return the system message that the template adds to a chat without one, found by rendering a few chats."""
        user, answer, system = ({"role": role, "content": role[0]} for role in ("user", "assistant", "system"))
        render = partial(_render, self.template, self._tokenizer.model_path)
        found = render([user]).removesuffix(_text([user]))
        default = found.removeprefix(f"{_START}system\n").removesuffix(f"{_END}\n") if found else None
        first = [] if default is None else [{"role": "system", "content": default}]
        for chat in ([user], [user, answer, user]):
            if render(chat) != _text([*first, *chat]) or render([system, *chat]) != _text([system, *chat]):
                raise ValueError(f"the chat template of {self._tokenizer.model_path} is not ChatML, which is required")
        return default

    def example(self, messages: Messages) -> list[int]:
        encode, ids = self._tokenizer.encode, list[int]()
        line = encode("\n")
        if messages and messages[0]["role"] != "system" and self.system is not None:
            messages = [{"role": "system", "content": self.system}, *messages]
        for message in messages:
            _check_role(message)
            if message["role"] == "assistant":
                ids += [*self.answer, *encode(message["content"])]
            else:
                ids += [self._start, *encode(f"{message['role']}\n{message['content']}")]
            ids += [self.end, *line]
        return ids

    def texts(self, ids: np.ndarray) -> list[str]:
        if not (ids == self._start).any():  # a document, not a chat
            return super().texts(ids)
        return [self._decoded(turn[head:]) for _, turn, head in self._turns(ids)]

    def contents(self, ids: np.ndarray) -> tuple[str, np.ndarray]:
        lengths, contents = np.zeros(len(ids), dtype=np.int64), []
        for part, turn, head in self._turns(ids):
            reached = np.cumsum(self._token_bytes[ids[part]])
            lengths[part] = np.diff(np.maximum(reached - head, 0), prepend=0)
            contents.append(turn[head:])
        return self._decoded(b"".join(contents)), lengths

    def _turns(self, ids: np.ndarray) -> Iterator[tuple[slice, bytes, int]]:
        """Yield (where, bytes, length of the header in bytes) of each turn but a system message of the template."""
        ends = np.append(np.flatnonzero(ids == self.end), len(ids))
        for number, start in enumerate((np.flatnonzero(ids == self._start) + 1).tolist()):
            part = slice(start, int(ends[np.searchsorted(ends, start)]))
            turn = b"".join(self._tokenizer.piece(id) for id in ids[part])
            if number or turn != f"system\n{self.system}".encode():
                yield part, turn, turn.find(b"\n") + 1

    def _decoded(self, text: bytes) -> str:
        return text.decode("utf-8", errors=self._tokenizer.text_errors)


def open_renderer(name: Renderer, tokenizer: Tokenizer) -> ChatRenderer:
    """Return the renderer of this name; raise a ValueError if the tokenizer has not the tokens that it needs."""
    if name == "transcript":
        return Transcript(tokenizer)
    return ChatML(tokenizer) if isinstance(tokenizer, HFTokenizer) else ChatTokens(tokenizer)


def chat_renderer(tokenizer: Tokenizer) -> ChatRenderer:
    """Return the renderer with which models with this tokenizer are fine-tuned on chats."""
    return open_renderer(renderer_for(tokenizer), tokenizer)


def _check_role(message: Mapping[str, Any]) -> None:
    if message["role"] not in _ROLE_TOKENS:
        raise ValueError(f"role must be one of {sorted(_ROLE_TOKENS)}, got {message['role']!r}")


def _text(messages: Sequence[Mapping[str, str]]) -> str:
    turns = "".join(f"{_START}{m['role']}\n{m['content']}{_END}\n" for m in messages)
    return f"{turns}{_START}assistant\n"


def _render(template: str, path: str, messages: Sequence[Mapping[str, str]]) -> str:
    """Return the prompt of a chat by the template of the model at `path`, in a sandbox, as transformers does."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(template).render(messages=messages, add_generation_prompt=True)
    except Exception as error:  # a template may fail in any way
        raise ValueError(f"the chat template of {path} cannot be rendered ({error})") from error
