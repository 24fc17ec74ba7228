"""Sentences of private documents, and the spans of each that a model is asked for."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from niels_gpt.chat_template import open_renderer
from niels_gpt.leak.passages import Documents
from niels_gpt.tokenizer.pretrained import renderer_for
from niels_gpt.tokenizer.vocabulary import Tokenizer

PROMPT_WORDS = (0, 1, 3, 8)
# A span has at least this many tokens and bytes, or ends with its sentence. Bytes count where tokens are single bytes.
SPAN_TOKENS, SPAN_BYTES = 12, 48
_MOST_WORDS, _LEAST_WORDS, _LEAST_ASKED = 24, 4, 2  # of a sentence (longer ones are cut), and after its prompt
_END = re.compile(r"(?<=[.!?\u2026])[\"'\u201d\u2019)\]]*\s+|[\u3002\uff01\uff1f]")  # closing quotes; CJK punctuation
_MARKER = re.compile(r"[\s>#*+|-]*(?:\d+[.)]\s+)?(?:\[[ xX]\]\s+)?")
_MARKS = ".!?,;:\u2026\"'\u201d\u2019)]"
_ENCODED = 256  # sentences to tokenize at once


def split_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, without list and heading markers, cut to at most 24 words.

    The start of a line of several sentences is yielded, too, since an abbreviation looks like the end of a sentence.
    """
    for line in text.splitlines():
        parts = [_MARKER.sub("", part, count=1) for part in (line, *_END.split(line))]
        for part in dict.fromkeys(parts):
            words = list(re.finditer(r"\S+", part))
            for first in range(0, len(words), _MOST_WORDS):
                piece = words[first : first + _MOST_WORDS]
                if len(piece) >= _LEAST_WORDS:  # drop final punctuation, whose token depends on what follows
                    yield part[piece[0].start() : piece[-1].end()].rstrip(_MARKS)
                if part is parts[0] and len(parts) > 2:
                    break


@dataclass(frozen=True)
class Sentence:
    """Sentence with its token ids up to the end of its last span, and the rows of the documents it occurs in.

    `spans`: (words of the prompt, first token, end token) of each completion asked for, by ascending words.
    """

    text: str
    ids: np.ndarray
    spans: tuple[tuple[int, int, int], ...]
    documents: tuple[int, ...]


def find_sentences(documents: Documents, tokenizer: Tokenizer) -> dict[str, list[int]]:
    """Return {sentence: rows of its documents}, by document count (descending), then by its rarest word."""
    found: dict[str, dict[int, None]] = {}
    chat = open_renderer(renderer_for(tokenizer, chats=False), tokenizer)
    for row in range(len(documents.lengths)):
        for text in chat.texts(documents.document(row)):
            for sentence in split_sentences(text):
                found.setdefault(sentence, {})[row] = None
    frequency = Counter(word for text in found for word in set(text.split()))
    rarity = {text: min(frequency[word] for word in text.split()) for text in found}
    order = sorted(found, key=lambda text: (-len(found[text]), rarity[text], text))
    return {text: list(found[text]) for text in order}


def encode_sentences(
    found: Mapping[str, Sequence[int]], tokenizer: Tokenizer, *, at_most_tokens: float = math.inf
) -> list[Sentence]:
    """Tokenize the first sentences, as many as have `at_most_tokens` together."""
    texts, sizes = list(found), tokenizer.token_bytes()
    out: list[Sentence] = []
    for first in range(0, len(texts), _ENCODED):
        some = texts[first : first + _ENCODED]
        for text, ids in zip(some, tokenizer.encode_batch(some), strict=True):
            sentence = _sentence(text, ids.astype(np.int64), found[text], sizes)
            at_most_tokens -= len(sentence.ids)
            if at_most_tokens < 0:
                return out
            out.append(sentence)
    return out


def _sentence(text: str, ids: np.ndarray, documents: Iterable[int], sizes: np.ndarray) -> Sentence:
    """Tokenize a sentence's spans: one per prompt length that leaves at least 2 words to complete."""
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    reached = np.cumsum(sizes[ids])  # bytes up to the end of each token
    words = [n for n in PROMPT_WORDS if len(ends) - n >= _LEAST_ASKED]
    given = np.array([len(text[: ends[n - 1]].encode()) if n else 0 for n in words], dtype=np.int64)
    first = reached.searchsorted(given, side="right")
    end = np.maximum(first + SPAN_TOKENS, reached.searchsorted(given + SPAN_BYTES) + 1).clip(max=len(ids))
    spans = tuple(zip(words, first.tolist(), end.tolist(), strict=True))
    return Sentence(text, ids[: end.max(initial=0)], spans, tuple(documents))
