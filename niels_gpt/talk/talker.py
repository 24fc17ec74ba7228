"""A trained model to chat with: weights, tokenizer, chat format, and what fits its context."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from niels_gpt.chat_template import ChatRenderer, open_renderer
from niels_gpt.checkpoint import load_model
from niels_gpt.config import Renderer
from niels_gpt.files.checks import Damaged, check_sums
from niels_gpt.inference.engine import Engine, Token
from niels_gpt.inference.sampling import Sampling, SeededNoise
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import Precision
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.tokenizer.tokenizers import FILE_NAMES
from niels_gpt.tokenizer.vocabulary import IncrementalDecoder, Tokenizer


@dataclass(frozen=True)
class TextChunk:
    """Text that is final, and the tokens whose text ends in it."""

    text: str = ""
    tokens: tuple[Token, ...] = ()

    def __add__(self, other: TextChunk) -> TextChunk:
        return TextChunk(self.text + other.text, self.tokens + other.tokens)


class StreamedText:
    """Incremental text of one answer; what may be the beginning of a stop string is held back until that is clear."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._decoder, self._stops = IncrementalDecoder(tokenizer), tuple(stops)
        self._held = ""
        self._given, self._made = 0, 0  # characters returned, and decoded
        self._waiting: list[tuple[int, Token]] = []  # with the character position where each token ends
        self.stopped = False

    def add(self, token: Token) -> TextChunk:
        """Return the text that is final after this token."""
        return self._take(self._decoder.add(token.id), token)

    def echo(self, prompt: Sequence[Token]) -> TextChunk:
        """Return the text before the answer, in which no stop string is looked for."""
        return TextChunk("".join(self._decoder.add(token.id) for token in prompt), tuple(prompt))

    def rest(self) -> TextChunk:
        """Return the text held back at the end of the answer; an incomplete character becomes U+FFFD."""
        if self.stopped:
            return TextChunk()
        piece = self._take(self._decoder.rest())
        if self.stopped:
            return piece
        text, self._held = self._held, ""
        return TextChunk(piece.text + text, (*piece.tokens, *(token for _, token in self._waiting)))

    def _take(self, text: str, token: Token | None = None) -> TextChunk:
        """Append text, cut it at the first stop string, and return what is final."""
        self._held += text
        self._made += len(text)
        if token is not None:
            self._waiting.append((self._made, token))
        places = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        self.stopped = bool(places)
        # Hold back the longest end of the text that is the beginning of a stop string.
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        ends = range(min(longest, len(self._held)), 0, -1)
        begun = next((n for n in ends if any(stop.startswith(self._held[-n:]) for stop in self._stops)), 0)
        certain = min(places) if places else len(self._held) - begun
        given, self._held = self._held[:certain], self._held[certain:]
        self._given += len(given)
        out = tuple(token for end, token in self._waiting if end <= self._given)
        self._waiting = self._waiting[len(out) :]
        return TextChunk(given, out)


Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Talker:
    """Model to chat with, which generates up to `slots` answers at a time."""

    name: str
    model: GPT
    tokenizer: Tokenizer
    renderer: Renderer
    slots: int = 16
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        # Never reset: answers interleave, and one that restored training mode would enable dropout for the others.
        self.model.eval()

    @cached_property
    def engine(self) -> Engine:
        """Return the engine, shared by all answers so that a next turn finds the KV cache of the turns before it."""
        return Engine(self.model, slots=self.slots, precision=self.precision)

    @cached_property
    def chat(self) -> ChatRenderer:
        """Return the chat format of the model."""
        return open_renderer(self.renderer, self.tokenizer)

    @cached_property
    def longest_token(self) -> int:
        """Return the bytes of the longest vocabulary entry, which bounds the text that n tokens can hold."""
        return int(self.tokenizer.token_bytes().max())

    def remember(self, messages: Messages, *, max_new_tokens: int) -> tuple[list[Mapping[str, str]], int]:
        """Return the last turns that fit the context, a quarter of it left for the answer, and the messages dropped.

        System messages are always kept (and not counted), and so is the last turn, whatever its length. A turn begins
        with a user message, so no answer is kept without its question.
        """
        T = self.model.cfg.T
        room = T - min(max_new_tokens, T // 4)
        system = [message for message in messages if message["role"] == "system"]
        said = [message for message in messages if message["role"] != "system"]
        begins = [0, *(i for i, message in enumerate(said) if i and message["role"] == "user")]

        def fits(turns: int) -> bool:
            kept = [*system, *said[begins[-turns] :]]
            # Only estimate a text that is too long anyway, which may be a megabyte.
            fewest = sum(len(message["content"]) for message in kept) // self.longest_token
            return fewest <= room and len(self.chat.prompt(kept)) <= room

        # Galloping, then binary search over turns: a chat far longer than the context is never tokenized as a whole.
        kept, most = 1, 1
        while most < len(begins) and fits(most := min(2 * most, len(begins))):
            kept = most
        while most - kept > 1:
            middle = (kept + most) // 2
            kept, most = (middle, most) if fits(middle) else (kept, middle)
        first = begins[-kept]
        return ([*system, *said[first:]] if first else list(messages)), first

    def beyond(self, prompt: Sequence[int]) -> int:
        """Return how many ids at the start of a prompt do not fit the context and are cut off."""
        return max(0, len(prompt) - self.model.cfg.T)

    def reply(self, messages: Messages, *, sampling: Sampling, max_new_tokens: int, seed: int) -> Iterator[str]:
        """Yield the text of the answer until it ends or has `max_new_tokens` tokens."""
        ends = self.tokenizer.special_token_ids().values()
        return self._text(
            self.chat.prompt(messages), sampling, max_new_tokens, seed=seed, ends=ends, stops=self.chat.stop_texts
        )

    def continuation(self, prompt: str, *, sampling: Sampling, max_new_tokens: int, seed: int) -> Iterator[str]:
        """Yield the text after a prompt, until the end of a text or turn or `max_new_tokens` tokens."""
        ids, ends = self.tokenizer.encode(prompt), {self.tokenizer.special_token_ids()["eot"], self.chat.end}
        return self._text(ids, sampling, max_new_tokens, seed=seed, ends=ends)

    def _text(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        max_new_tokens: int,
        *,
        seed: int,
        ends: Collection[int],
        stops: Sequence[str] = (),
    ) -> Iterator[str]:
        text, row = StreamedText(self.tokenizer, stops), self.engine.add(prompt, sampling, noise=SeededNoise(seed))
        try:
            for _ in range(max_new_tokens):
                (token,) = self.engine.step([row])
                if token.id in ends:
                    break
                yield text.add(token).text
                if text.stopped:
                    return
            yield text.rest().text
        finally:
            self.engine.drop(row)


def open_talker(
    folder: str | Path, *, device: str, tokenizer: Path | None = None, slots: int = 16, precision: Precision = "float32"
) -> Talker:
    """Load the model in a folder that training or an export wrote.

    An export contains its tokenizer; for a training output, `tokenizer` is the folder of the one it was trained with.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise Damaged(folder, "holds no model yet")
    config = _read_config(folder / "config.json")
    renderer = config.pop("renderer", "transcript")
    inside = [name for name in FILE_NAMES if (folder / name).is_file()]
    if inside:
        check_sums(folder, ["config.json", *inside, "model.safetensors"])
    own = folder / "tokenizer"  # an imported base has its tokenizer there
    beside = own if own.is_dir() else folder if inside or tokenizer is None else tokenizer
    vocabulary = load_tokenizer(beside)
    model = _exported_model(folder, config, device) if inside else load_model(folder / "best.pt", device)
    if vocabulary.vocab_size != model.cfg.V:
        raise Damaged(
            folder,
            f"holds a model of {model.cfg.V} tokens, and {beside} a tokenizer of {vocabulary.vocab_size}: they do not "
            "match; make both again",
        )
    # A folder name that is not UTF-8 could not be sent in JSON.
    name = os.fsencode(folder.resolve().name).decode("utf-8", errors="replace")
    return Talker(name, model, vocabulary, renderer, slots, precision)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if config.get("renderer", "transcript") not in get_args(Renderer):
            raise ValueError(f"renderer is one of {get_args(Renderer)}, not {config['renderer']!r}")
        if "architectures" in config:
            raise ValueError("it was exported for the transformers library")
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise Damaged(path, f"does not describe a model ({error}): train or export it again") from error
    return config


def _exported_model(folder: Path, config: Mapping[str, Any], device: str) -> GPT:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / "model.safetensors"
    try:
        weights = load_file(file, device=device)
        model = GPT(config).to(device)
        if model.cfg.tied:
            weights["lm_head.weight"] = weights["tok_emb.weight"]
        model.load_state_dict(weights)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise Damaged(
            file, f"does not match config.json beside it, or is damaged ({reason}): export it again"
        ) from error
    return model
