"""Statistics of generated text, beside those of held-out text written by people."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile

import numpy as np

from niels_gpt import chat_format, chat_template
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.cache.windows import TokenStream
from niels_gpt.config import Renderer
from niels_gpt.eval.held_out import inference
from niels_gpt.inference.engine import Engine
from niels_gpt.inference.sampling import Sampling, SeededNoise
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


def held_out_texts(streams: Sequence[TokenStream], tokenizer: Tokenizer, *, n: int) -> list[str]:
    """So many, of all streams in turn and spread over each, long enough to be cut as what a model writes is."""
    texts = []
    for i, stream in enumerate(streams):
        each = len(range(i, n, len(streams)))
        length = min(MAX_BYTES, int(stream.lengths.max()))  # a token is a byte at least
        numbers = np.linspace(0, stream.windows(length - 1) - 1, each).astype(np.int64)
        texts += [tokenizer.decode(ids) for ids in stream.gather(numbers, length - 1).tolist()]
    return texts


def held_out_replies(
    chats: Mapping[str, SFTExampleDataset], tokenizer: Tokenizer, *, weights: Mapping[str, float], at_most: int
) -> list[Text]:
    """What the assistant says first, of so many chats of each source as the weights ask for, spread over them. One that
    is longer than a context has not ended."""
    special, total = tokenizer.special_token_ids(), sum(weights.values())
    replies = []
    for name, source in chats.items():
        wanted = min(len(source), round(at_most * weights.get(name, 0.0) / total))
        for row in np.linspace(0, len(source) - 1, wanted).astype(np.int64).tolist():
            spoken = list(dropwhile(lambda token: token != special["asst"], source.document(row).tolist()))[1:]
            said = list(takewhile(lambda token: token not in special.values(), spoken))
            replies.append(Text(tokenizer.decode(said), ended=len(said) < len(spoken)))
    return [reply for reply in replies if reply.text]
