"""What a model writes for the report card, many texts at once, and what can be counted in it without a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from niels_gpt import chat_format, chat_template
from niels_gpt.config import Renderer
from niels_gpt.eval.held_out import inference
from niels_gpt.inference.engine import Engine
from niels_gpt.inference.noise import SeededNoise
from niels_gpt.inference.sampling import Sampling
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import derive_seed
from niels_gpt.tokenizer.vocabulary import Tokenizer

MAX_BYTES = 200  # of a text: tokens would be more text to one tokenizer than to another
SAMPLING = Sampling(temperature=0.8, top_k=50)
_TAGS = tuple(f"\n{role}: ".encode() for role in chat_format.ROLES)
_ROLE = re.compile(rf"^(?:{'|'.join(chat_format.ROLES)}):", re.MULTILINE)
_ENDS = (".", "!", "?", "…", '"', "”", ")")


@dataclass(frozen=True)
class Text:
    """`ended`: by the model itself, and not because there was enough."""

    text: str
    ended: bool

    @classmethod
    def cut(cls, text: str) -> Text:
        """Somebody's text, as if a model had written it: that of a longer one was stopped."""
        whole = text.encode("utf-8")
        return cls(whole[:MAX_BYTES].decode("utf-8", errors="ignore"), len(whole) < MAX_BYTES)


def question_prompt(tokenizer: Tokenizer, question: str, renderer: Renderer) -> list[int]:
    messages: list[Mapping[str, str]] = [{"role": "user", "content": question}]
    if renderer == "chat_tokens":
        return chat_template.format_prompt(tokenizer, messages)
    return [tokenizer.special_token_ids()["eot"], *tokenizer.encode(chat_format.format_chat(messages))]


def opening_prompt(tokenizer: Tokenizer, opening: str) -> list[int]:
    return [tokenizer.special_token_ids()["eot"], *tokenizer.encode(opening)]


def write_texts(
    model: GPT, tokenizer: Tokenizer, prompts: Sequence[tuple[Sequence[int], Sampling]], *, seed: int
) -> list[Text]:
    """One for each prompt, all in one batch: to an id that has no text, to the tag of a next turn, or to MAX_BYTES.
    Each is drawn from a seed of its own."""
    engine = Engine(model, slots=len(prompts))
    rows = {
        engine.add(ids, sampling, noise=SeededNoise(derive_seed(seed, "text", i))): i
        for i, (ids, sampling) in enumerate(prompts)
    }
    written, done = [b""] * len(prompts), dict[int, Text]()
    with inference(model):
        while len(done) < len(prompts):
            for token in engine.step():
                i = rows[token.row]
                piece = tokenizer.piece(token.id)
                written[i] += piece
                ends = [place for tag in _TAGS if (place := written[i].find(tag)) >= 0]
                if piece and not ends and len(written[i]) < MAX_BYTES:
                    continue
                whole = written[i][: min(ends)] if ends else written[i][:MAX_BYTES]
                done[i] = Text(whole.decode("utf-8", errors="replace"), bool(ends) or not piece)
                engine.drop(token.row)
    return [done[i] for i in range(len(prompts))]


def in_form(answer: Text) -> bool:
    """As an assistant speaks: to the end of a sentence and there it ends, no other turn in it, no broken character."""
    text = answer.text.strip()
    return (
        answer.ended
        and text.endswith(_ENDS)
        and len(words(text)) > 1
        and not _ROLE.search(text)
        and "\ufffd" not in text
    )


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def grams(text: str, n: int) -> list[tuple[str, ...]]:
    """Each n words in a row."""
    found = words(text)
    return [tuple(found[i : i + n]) for i in range(len(found) - n + 1)]


def repeated_share(text: str, n: int) -> float:
    """Of its n-grams, those that stood in it before; 0 where it is too short to have any."""
    found = grams(text, n)
    return 1 - len(set(found)) / len(found) if found else 0.0


def distinct_share(texts: Sequence[str], n: int) -> float:
    """Of all n-grams of all texts, how many different ones there are for each."""
    found = [gram for text in texts for gram in grams(text, n)]
    return len(set(found)) / len(found) if found else 0.0
