"""Generation of samples, and of texts for the report card, with statistics and held-out texts to compare them with."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from niels_gpt import chat_format
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.cache.windows import TokenFile, TokenStream
from niels_gpt.chat_template import chat_renderer, open_renderer
from niels_gpt.config import Renderer
from niels_gpt.eval import EvalRules
from niels_gpt.eval.held_out import inference
from niels_gpt.generate import generate, generate_ids
from niels_gpt.inference.engine import Engine
from niels_gpt.inference.sampling import Sampling, SeededNoise
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import derive_seed, make_generator
from niels_gpt.tokenizer.vocabulary import Tokenizer

MAX_BYTES = 200  # per text; in bytes, because tokens differ in length between tokenizers
_TAGS = tuple(f"\n{role}: ".encode() for role in chat_format.ROLES)
_ROLE = re.compile(rf"^(?:{'|'.join(chat_format.ROLES)}):", re.MULTILINE)
_ENDS = (".", "!", "?", "…", '"', "”", ")")
_COUNTED_TOKENS, _DECODED = 4_000_000, 65_536  # per stream; at once


@dataclass(frozen=True)
class Text:
    """Text, and whether it `ended` by itself rather than by a length limit."""

    text: str
    ended: bool

    @classmethod
    def cut(cls, text: str) -> "Text":
        """Truncate a text to MAX_BYTES, as generation would."""
        whole = text.encode("utf-8")
        return cls(whole[:MAX_BYTES].decode("utf-8", errors="ignore"), len(whole) < MAX_BYTES)


def question_prompt(tokenizer: Tokenizer, question: str, renderer: Renderer) -> list[int]:
    """Return the ids of a question as a chat prompt; a transcript is a text, which begins after an end of text."""
    before = [tokenizer.special_token_ids()["eot"]] if renderer == "transcript" else []
    return [*before, *open_renderer(renderer, tokenizer).prompt([{"role": "user", "content": question}])]


def opening_prompt(tokenizer: Tokenizer, opening: str) -> list[int]:
    """Return the ids of an opening at the start of a text."""
    return [tokenizer.special_token_ids()["eot"], *tokenizer.encode(opening)]


def write_texts(
    model: GPT, tokenizer: Tokenizer, prompts: Sequence[tuple[Sequence[int], Sampling]], *, seed: int
) -> list[Text]:
    """Generate one text per prompt in one batch, up to a special token, the tag of another turn, or MAX_BYTES."""
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
    """Check that an answer ends by itself and with a sentence, and has several words, no other turn and valid text."""
    text = answer.text.strip()
    return (
        answer.ended
        and text.endswith(_ENDS)
        and len(words(text)) > 1
        and not _ROLE.search(text)
        and "\ufffd" not in text
    )


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return re.findall(r"\w+", text.lower())


def real_words(text: str) -> list[str]:
    """Return the words of two letters or more, in lower case: pieces of words are often single letters."""
    return [word for word in words(text) if len(word) > 1 and word.isalpha()]


def known_words(sources: Iterable[Iterable[np.ndarray | TokenFile]], tokenizer: Tokenizer) -> set[str]:
    """Return the words of training text, of the first 4 M tokens of each source, whose ids come in arrays."""
    found: set[str] = set()
    for arrays in sources:
        left = _COUNTED_TOKENS
        for array in arrays:
            for start in range(0, min(left, len(array)), _DECODED):
                found.update(real_words(tokenizer.decode(array[start : start + _DECODED].tolist())))
            left -= min(left, len(array))
    return found


def grams(text: str, n: int) -> list[tuple[str, ...]]:
    """Return all n-grams of words, in order."""
    found = words(text)
    return [tuple(found[i : i + n]) for i in range(len(found) - n + 1)]


def repeated_share(text: str) -> float:
    """Return the share of 4-grams that occurred earlier in the text; 0 if it is too short to have any."""
    found = grams(text, 4)
    return 1 - len(set(found)) / len(found) if found else 0.0


def distinct_share(texts: Sequence[str]) -> float:
    """Return the number of different 2-grams of all texts divided by the number of 2-grams (distinct-2)."""
    found = [gram for text in texts for gram in grams(text, 2)]
    return len(set(found)) / len(found) if found else 0.0


def held_out_texts(streams: Sequence[TokenStream], tokenizer: Tokenizer, *, n: int) -> list[str]:
    """Return n held-out excerpts of at least MAX_BYTES, round-robin over the streams, at evenly spaced positions."""
    texts = []
    for i, stream in enumerate(streams):
        each = len(range(i, n, len(streams)))
        length = min(MAX_BYTES, int(stream.lengths.max()))  # in tokens, of at least one byte each
        numbers = np.linspace(0, stream.windows(length - 1) - 1, each).astype(np.int64)
        texts += [tokenizer.decode(ids) for ids in stream.gather(numbers, length - 1).tolist()]
    return texts


def held_out_replies(
    chats: Mapping[str, SFTExampleDataset], tokenizer: Tokenizer, *, weights: Mapping[str, float], at_most: int
) -> list[Text]:
    """Return the first assistant turn of about `at_most` held-out chats, divided among the sources by `weights`.

    The chats are evenly spaced in each source. A turn longer than the context has not `ended`.
    """
    chat, total = chat_renderer(tokenizer), sum(weights.values())
    replies = []
    for name, source in chats.items():
        wanted = min(len(source), round(at_most * weights.get(name, 0.0) / total))
        for row in np.linspace(0, len(source) - 1, wanted).astype(np.int64).tolist():
            ids = source.document(row).tolist()
            said = chat.reply(ids, first=True)
            ended = ids[-len(said) :] != said  # else the context ended first
            replies.append(Text(tokenizer.decode(said), ended))
    return [reply for reply in replies if reply.text]


def generate_reply(model: GPT, messages: Sequence[Mapping[str, str]], tokenizer: Tokenizer, **how: Any) -> str:
    """Return a fine-tuned model's reply to a chat; `how` are further arguments of `generate_ids`."""
    chat = chat_renderer(tokenizer)
    return tokenizer.decode(chat.reply(generate_ids(model, chat.prompt(messages), stop=chat.end, **how)))


def sample_texts(model: GPT, tokenizer: Tokenizer, rules: EvalRules, *, chat: bool) -> list[tuple[str, str]]:
    """Return (prompt, prompt with its continuation) for each prompt, or with `chat` (question, reply).

    Each is sampled with its own seed, so that adding a prompt does not change the others.
    """
    found = []
    for i, asked in enumerate(rules.questions if chat else rules.prompts):
        generator = make_generator(derive_seed(rules.seed, "reply" if chat else "sample", i))
        how: dict[str, Any] = {"max_new_tokens": rules.max_new_tokens, "generator": generator}
        if chat:
            sampling, question = Sampling(rules.temperature, rules.top_k), {"role": "user", "content": asked}
            text = generate_reply(model, [question], tokenizer, sampling=sampling, **how)
        else:
            how |= {"temperature": rules.temperature, "top_k": rules.top_k}
            text = generate(model, asked, tokenizer=tokenizer, **how)
        found.append((asked, text))
    return found
