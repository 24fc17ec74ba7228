"""A trained model that answers: its weights, its tokenizer, and the way of writing chats that it was trained with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from niels_gpt import chat_format, chat_template
from niels_gpt.checkpoint import load_model
from niels_gpt.config import Renderer
from niels_gpt.files.damage import Damaged
from niels_gpt.generate import Sampling, stream_ids
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import make_generator
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.tokenizer.folder import FILE_NAMES
from niels_gpt.tokenizer.incremental import IncrementalDecoder
from niels_gpt.tokenizer.vocabulary import Tokenizer

SAMPLING = Sampling(temperature=0.8, top_k=50)  # where nobody asks for another: tame, and not always the same words


class ReplyPart(NamedTuple):
    """A streamed part of a reply: text that has become certain (none, while a character or a tag is not whole), and the
    tokens it took."""

    text: str
    tokens: int
    ended: bool = False  # the model has ended its turn; where no piece says so, there was no room for more


@dataclass(frozen=True)
class Talker:
    """A model to talk to."""

    name: str
    model: GPT
    tokenizer: Tokenizer
    renderer: Renderer

    def __post_init__(self) -> None:
        # Once and for all: answers take turns, and one that put the mode back would bring dropout into the others.
        self.model.eval()

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The ids that the model answers after."""
        if self.renderer == "chat_tokens":
            return chat_template.format_prompt(self.tokenizer, messages)
        return self.tokenizer.encode(chat_format.format_chat(messages))

    def reply(
        self, messages: Sequence[Mapping[str, str]], *, sampling: Sampling, max_new_tokens: int, seed: int
    ) -> Iterator[ReplyPart]:
        """Token by token, to the end of the answer or of `max_new_tokens`."""
        special = self.tokenizer.special_token_ids()
        steps = stream_ids(
            self.model,
            [self.prompt(messages)],
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stop=special["eot"],
            generators=[make_generator(seed)],
        )
        decoder = IncrementalDecoder(self.tokenizer)
        text = _StopAtTags(_TAGS if self.renderer == "transcript" else ())
        try:
            count = 0
            for (token,) in steps:
                if token is None or token in special.values():
                    break
                count += 1
                yield ReplyPart(text.add(decoder.add(token)), 1, text.stopped)
                if text.stopped:
                    return
            yield ReplyPart(text.rest(decoder.rest()), 0, text.stopped or count < max_new_tokens)
        finally:
            steps.close()  # type: ignore[attr-defined]


_TAGS = tuple(f"\n{role}: " for role in chat_format.ROLES)  # where a transcript goes on with the next turn


class _StopAtTags:
    """Stop sequences: text as it comes, up to the first of the tags. What may be the beginning of a tag is held back
    until it is clear that it is none."""

    def __init__(self, tags: Sequence[str]) -> None:
        self._tags, self._held = tags, ""
        self.stopped = False

    def add(self, text: str) -> str:
        self._held += text
        ends = [place for tag in self._tags if (place := self._held.find(tag)) >= 0]
        if ends:
            self.stopped = True
            return self._held[: min(ends)]
        start = self._held.rfind("\n")
        kept = start if start >= 0 and any(tag.startswith(self._held[start:]) for tag in self._tags) else None
        given, self._held = self._held[:kept], "" if kept is None else self._held[kept:]
        return given

    def rest(self, text: str) -> str:
        return self.add(text) + ("" if self.stopped else self._held)


def open_talker(folder: str | Path, *, device: str, tokenizer: Path | None = None) -> Talker:
    """The model in a folder that training or an export wrote. An export holds its tokenizer; what training wrote needs
    the one it was trained with, in the folder `tokenizer`."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise Damaged(folder, "holds no model yet")
    config = _read_config(folder / "config.json")
    renderer = config.pop("renderer", "transcript")
    inside = any((folder / name).is_file() for name in FILE_NAMES)
    beside = folder if inside or tokenizer is None else tokenizer
    vocabulary = load_tokenizer(beside)
    model = _exported_model(folder, config, device) if inside else load_model(folder / "best.pt", device)
    if vocabulary.vocab_size != model.cfg.V:
        raise Damaged(
            folder,
            f"holds a model of {model.cfg.V} tokens, and {beside} a tokenizer of {vocabulary.vocab_size}: they do not "
            "belong together; make both again",
        )
    # A name that is not UTF-8 could not be sent to anybody.
    name = os.fsencode(folder.resolve().name).decode("utf-8", errors="replace")
    return Talker(name=name, model=model, tokenizer=vocabulary, renderer=renderer)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if config.get("renderer", "transcript") not in get_args(Renderer):
            raise ValueError(f"renderer is one of {get_args(Renderer)}, not {config['renderer']!r}")
        if "architectures" in config:
            raise ValueError("it is one that was exported for the transformers library")
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
            file, f"is not the model that config.json beside it describes, or is damaged ({reason}): export it again"
        ) from error
    return model
