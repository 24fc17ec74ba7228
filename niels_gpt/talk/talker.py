"""A trained model to chat with: weights, tokenizer, chat format, and what fits its context."""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from safetensors.torch import load_file

from niels_gpt.chat_template import ChatRenderer, Messages, open_renderer
from niels_gpt.checkpoint import load_model
from niels_gpt.config import Renderer
from niels_gpt.files.checks import Damaged, check_sums, read_meta
from niels_gpt.inference.engine import Engine, Token
from niels_gpt.inference.sampling import Sampling, SeededNoise
from niels_gpt.model.gpt import GPT
from niels_gpt.model.precision import Precision
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.tokenizer.tokenizers import FILE_NAMES
from niels_gpt.tokenizer.vocabulary import IncrementalDecoder, Tokenizer

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class TextChunk:
    """Text that is final, and the tokens whose text ends in it; the last of an answer also says how it ended."""

    text: str = ""
    tokens: tuple[Token, ...] = ()
    finish: Finish | None = None
    written: int = 0  # tokens of the whole answer, without the one that ended it; set with `finish`

    def __add__(self, other: "TextChunk") -> "TextChunk":
        written = self.written + other.written
        return TextChunk(self.text + other.text, self.tokens + other.tokens, other.finish or self.finish, written)


class StreamedText:
    """Incremental text of one answer, until a token of `ends`, a stop string, or `max_tokens` tokens.

    What may be the beginning of a stop string is held back until that is clear.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str], *, ends: Collection[int] = (), max_tokens: int | None = None
    ) -> None:
        self._decoder, self._stops = IncrementalDecoder(tokenizer), tuple(stops)
        self._ends, self._most = ends, max_tokens
        self._held, self._given = "", 0  # text held back, and characters returned, those of an echo included
        self._waiting: list[tuple[int, Token]] = []  # with the character position where each token ends
        self._echoed = False
        self._written = 0
        self.finish: Finish | None = None

    def echo(self, prompt: Sequence[Token]) -> TextChunk:
        """Return the text before the answer, in which no stop string is looked for."""
        self._echoed, text, tokens = True, "", []
        for token in prompt:
            tokens.append(token._replace(offset=len(text)))
            text += self._decoder.add(token.id)
        self._given = len(text)
        return TextChunk(text, tuple(tokens))

    def add(self, token: Token) -> TextChunk:
        """Return the text that is final after this token; `finish` is set if it is the last."""
        token = token._replace(offset=self._given + len(self._held))
        if token.id in self._ends:
            # lm-eval expects one token after an echoed prompt, whichever it is.
            return self._end("stop") + TextChunk("", (token,) if self._echoed else ())
        self._written += 1
        self._held += self._decoder.add(token.id)
        self._waiting.append((self._given + len(self._held), token))
        return self._end("length") if self._written == self._most else self._take(hold=True)

    def rest(self) -> TextChunk:
        """End the answer, and return the text held back; an incomplete character becomes U+FFFD."""
        return TextChunk() if self.finish else self._end("length")

    def _end(self, finish: Finish) -> TextChunk:
        self.finish = finish
        self._held += self._decoder.rest()
        return self._take(hold=False)

    def _take(self, *, hold: bool) -> TextChunk:
        """Return the text up to the first stop string; `hold` back the longest end that may be the start of one."""
        held, stops = self._held, self._stops
        ends = range(len(held), 0, -1) if hold else ()
        begun = next((n for n in ends if any(stop.startswith(held[-n:]) for stop in stops)), 0)
        if places := [place for stop in stops if (place := held.find(stop)) >= 0]:
            self.finish = "stop"
        certain = min(places, default=len(held) - begun)
        self._held = held[certain:]
        self._given += certain
        out = tuple(token for end, token in self._waiting if end <= self._given)
        self._waiting = self._waiting[len(out) :]
        return TextChunk(held[:certain], out, self.finish, self._written if self.finish else 0)


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

        # Galloping, then bisection: a chat far longer than the context is never tokenized as a whole.
        kept, end = 1, len(begins)
        while kept < end and fits(min(2 * kept, end)):
            kept = min(2 * kept, end)
        kept += bisect_left(range(kept + 1, min(2 * kept, end)), True, key=lambda turns: not fits(turns))
        first = begins[-kept]
        return ([*system, *said[first:]] if first else list(messages)), first

    def beyond(self, prompt: Sequence[int]) -> int:
        """Return how many ids at the start of a prompt do not fit the context and are cut off."""
        return max(0, len(prompt) - self.model.cfg.T)

    def reply(self, messages: Messages, *, sampling: Sampling, max_new_tokens: int, seed: int) -> Iterator[str]:
        """Yield the text of the answer until it ends or has `max_new_tokens` tokens."""
        ends = self.tokenizer.special_token_ids().values()
        text = StreamedText(self.tokenizer, self.chat.stop_texts, ends=ends, max_tokens=max_new_tokens)
        return self._write(text, self.chat.prompt(messages), sampling, seed)

    def continuation(self, prompt: str, *, sampling: Sampling, max_new_tokens: int, seed: int) -> Iterator[str]:
        """Yield the text after a prompt, until the end of a text or turn or `max_new_tokens` tokens."""
        ends = {self.tokenizer.special_token_ids()["eot"], self.chat.end}
        text = StreamedText(self.tokenizer, (), ends=ends, max_tokens=max_new_tokens)
        return self._write(text, self.tokenizer.encode(prompt), sampling, seed)

    def _write(self, text: StreamedText, ids: Sequence[int], sampling: Sampling, seed: int) -> Iterator[str]:
        row = self.engine.add(ids, sampling, noise=SeededNoise(seed))
        try:
            while not text.finish:
                (token,) = self.engine.step([row])
                yield text.add(token).text
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
    config = read_meta(folder / "config.json")
    if "architectures" in config:
        raise Damaged(folder, "is in the format of the transformers library: export the model without --transformers")
    renderer = config.pop("renderer", "transcript")
    inside = [name for name in FILE_NAMES if (folder / name).is_file()]
    if inside:
        check_sums(folder, ["config.json", *inside, "model.safetensors"])
        model, weights = GPT(config).to(device), load_file(folder / "model.safetensors", device=device)
        if model.cfg.tied:
            weights["lm_head.weight"] = weights["tok_emb.weight"]
        model.load_state_dict(weights)
    else:
        model = load_model(folder / "best.pt", device)
    own = folder / "tokenizer"  # an imported base has its tokenizer there
    beside = own if own.is_dir() else folder if inside or tokenizer is None else tokenizer
    vocabulary = load_tokenizer(beside)
    if vocabulary.vocab_size != model.cfg.V:
        raise Damaged(
            folder,
            f"holds a model of {model.cfg.V} tokens, and {beside} a tokenizer of {vocabulary.vocab_size}: they do not "
            "match; make both again",
        )
    return Talker(folder.resolve().name, model, vocabulary, renderer, slots, precision)
