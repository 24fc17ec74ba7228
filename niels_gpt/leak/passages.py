"""Passages and sentences of private text: cutting documents into them, scoring passages, finding repeated ones."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional as F

from niels_gpt.chat_template import open_renderer
from niels_gpt.eval.held_out import inference
from niels_gpt.leak.memorized import TRIES
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import numpy_generator
from niels_gpt.tokenizer.pretrained import renderer_for
from niels_gpt.tokenizer.vocabulary import Tokenizer

# A passage is a window of a document: a prompt, and the tokens that the model is asked for.
#
# Windows overlap by a prompt, so that every token after the first prompt is asked for once. A document shorter than a
# window is one window; its prompt is at most half of it.


class Documents(Protocol):
    """Tokenized documents by row."""

    @property
    def lengths(self) -> np.ndarray: ...

    def document(self, row: int) -> np.ndarray: ...


class DocumentList:
    """Tokenized documents in memory."""

    def __init__(self, documents: Sequence[Sequence[int]]) -> None:
        self._documents = [np.array(document, dtype=np.int64) for document in documents]
        self.lengths = np.array([len(document) for document in documents], dtype=np.int64)

    def document(self, row: int) -> np.ndarray:
        return self._documents[row]


@dataclass(frozen=True)
class Passages:
    """N passages as columns; of the `lengths` tokens of each, the first `prompts` are the prompt."""

    tokens: np.ndarray  # (N, chunk_size), padded with zeros
    lengths: np.ndarray
    prompts: np.ndarray
    documents: np.ndarray  # row of each passage's document, ascending
    starts: np.ndarray  # position of its first token in the document

    def __len__(self) -> int:
        return len(self.lengths)

    def follows(self, i: int) -> bool:
        """Check whether passage i continues where the one before it ends, in the same document."""
        same = self.documents[i] == self.documents[i - 1]
        return bool(same and self.starts[i] == self.starts[i - 1] + self.asked[i - 1])

    def take(self, chosen: np.ndarray) -> Passages:
        """Return the passages selected by a mask."""
        return Passages(*(column[chosen] for column in vars(self).values()))

    @property
    def asked(self) -> np.ndarray:
        """Number of tokens asked for, by passage."""
        return self.lengths - self.prompts


def cut_passages(
    documents: Documents, *, chunk_size: int, prompt_tokens: int, at_most: int | None = None, seed: int = 0
) -> Passages:
    """Cut documents into passages of `chunk_size` tokens, of which `prompt_tokens` are the prompt.

    With `at_most`, sample that many of them: of each document a run of passages, at most a 16th of all.
    """
    found: list[tuple[int, int, int, int]] = []
    rng = numpy_generator(seed)
    for row in rng.permutation(len(documents.lengths)).tolist():
        own = list(windows(int(documents.lengths[row]), chunk_size, prompt_tokens))
        if at_most is not None:
            n = min(len(own), max(1, at_most // _FEWEST_DOCUMENTS), at_most - len(found))
            first = int(rng.integers(len(own) - n + 1))
            own = own[first : first + n]
        found += [(row, *window) for window in own]
        if at_most is not None and len(found) >= at_most:
            break
    found.sort()
    tokens = np.zeros((len(found), chunk_size), dtype=np.int64)
    read = -1
    for i, (row, start, length, _) in enumerate(found):
        if row != read:  # passages are sorted by document, so that each is read once
            document, read = documents.document(row), row
        tokens[i, :length] = document[start : start + length]
    rows, starts, lengths, prompts = np.array(found, dtype=np.int64).reshape(-1, 4).T
    return Passages(tokens, lengths=lengths, prompts=prompts, documents=rows, starts=starts)


_FEWEST_DOCUMENTS = 16  # that a sample of passages comes from, since an attack is judged by documents


def windows(L: int, chunk_size: int, prompt_tokens: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, length, prompt), in tokens, of the windows of a document of L tokens.

    A last window that asks for less than a quarter of a full one is skipped: chance would complete it more often.
    """
    prompt = min(prompt_tokens, L // 2)
    if not prompt:
        return
    for start in range(0, L - prompt, chunk_size - prompt):
        length = min(chunk_size, L - start)
        if length - prompt >= max(1, (chunk_size - prompt_tokens) // 4):
            yield start, length, prompt


def needed_log_pz(tries: int) -> float:
    """Return the least log probability at which one of `tries` samples is the passage with probability 1/2."""
    return math.log(-math.expm1(math.log(0.5) / tries))


@dataclass(frozen=True)
class Scored:
    """Scores of passages, (N,) each."""

    log_pz: np.ndarray  # log probability of the tokens asked for, after the prompt
    log_pz_alone: np.ndarray  # the same without the prompt, after an end-of-text token; -inf if not extractable with it
    greedy: np.ndarray  # number of tokens that greedy decoding gets right before its first error


def score_passages(model: GPT, passages: Passages, *, end_of_text: int, B: int) -> Scored:
    """Score passages, `B` per forward pass; `end_of_text` is the context where no prompt is given."""
    device, parts = model.tok_emb.weight.device, []
    with inference(model):
        for first in range(0, len(passages), B):
            rows = slice(first, first + B)
            prompts, asked = passages.prompts[rows], passages.asked[rows]
            n = int(asked.max())
            places = np.minimum(prompts[:, None] + np.arange(n), passages.tokens.shape[1] - 1)
            wanted = torch.from_numpy(np.take_along_axis(passages.tokens[rows], places, axis=1)).to(device)
            counts = torch.arange(n, device=device) < torch.from_numpy(asked).to(device)[:, None]
            x = torch.from_numpy(passages.tokens[rows, :-1]).to(device)
            before = torch.from_numpy(places - 1).to(device)[..., None]
            logits = model.logits(torch.take_along_dim(model.hidden(model.embed(x)), before, dim=1))
            hits = (logits.max(dim=-1).indices == wanted) & counts
            greedy = hits.long().cumprod(dim=1).sum(dim=1).cpu().numpy()
            log_pz = _log_prob(logits, wanted, counts)
            log_pz_alone = np.full(len(log_pz), -np.inf)
            # A passage is extractable if the greatest number of samples suffices.
            if (told := (greedy == asked) | (log_pz >= needed_log_pz(TRIES[-1]))).any():
                only = torch.from_numpy(told).to(device)
                alone = F.pad(wanted[only, :-1], (1, 0), value=end_of_text)
                log_pz_alone[told] = _log_prob(model(alone), wanted[only], counts[only])
            parts.append((log_pz, log_pz_alone, greedy))
    columns = zip(*parts, strict=True) if parts else ([np.empty(0)],) * 3
    return Scored(*(np.concatenate(column) for column in columns))


def _log_prob(logits: torch.Tensor, wanted: torch.Tensor, counts: torch.Tensor) -> np.ndarray:
    losses = F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten(), reduction="none").view_as(wanted)
    found: np.ndarray = -(losses.double() * counts).sum(dim=1).cpu().numpy()
    return found


def longest_run(passages: Passages, greedy: np.ndarray) -> tuple[int, int]:
    """Return (tokens, first passage) of the longest recited text; a completed passage is the prompt of the next."""
    best, first, run, begun = 0, 0, 0, 0
    for i, count in enumerate(greedy.tolist()):
        if not (i and greedy[i - 1] == passages.asked[i - 1] and passages.follows(i)):
            run, begun = 0, i
        run += count
        if run > best:
            best, first = run, begun
    return best, first


# Repeated passages occur in other documents, too: templates, boilerplate, quotations. Reciting them proves nothing
# about one document, since the model may know them from the others.

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, hence invertible modulo 2**64: no bit of an id is lost


def repeated(passages: Passages, documents: Documents, *, own: bool) -> np.ndarray:
    """Return a mask of the passages of which at least half of the n-grams asked for are in other documents.

    n is a quarter of the tokens that the longest passage asks for. `own`: the passages are themselves of `documents`,
    so that an n-gram must be in two of them.
    """
    if not len(passages):
        return np.empty(0, dtype=bool)
    n = max(1, int(passages.asked.max()) // 4)
    grams = grams_of(passages.tokens, n)
    starts = np.arange(grams.shape[1])
    asked = (starts >= passages.prompts[:, None]) & (starts + n <= passages.lengths[:, None])
    looked_for, which = np.unique(grams[asked], return_inverse=True)
    met = np.zeros(len(looked_for), dtype=bool)
    elsewhere = np.zeros(len(looked_for), dtype=bool)
    for row in range(len(documents.lengths)):
        at = places_among(looked_for, grams_of(documents.document(row), n))
        elsewhere[at] |= met[at] if own else True
        met[at] = True
    counts, rows = asked.sum(axis=1), np.nonzero(asked)[0]
    shares = np.bincount(rows, weights=elsewhere[which], minlength=len(passages)) / np.maximum(1, counts)
    return shares >= 0.5


def places_among(ordered: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return the positions in `ordered` (ascending, not empty) of those of the `found` values that it contains."""
    at = np.minimum(np.searchsorted(ordered, found), len(ordered) - 1)
    return at[ordered[at] == found]


def grams_of(tokens: np.ndarray, n: int) -> np.ndarray:
    """Return a polynomial hash modulo 2**64 of every n consecutive tokens, (..., L) -> (..., L-n+1)."""
    ids, length = tokens.astype(np.uint64) + np.uint64(1), max(0, tokens.shape[-1] - n + 1)
    hashes = np.zeros((*tokens.shape[:-1], length), dtype=np.uint64)
    for i in range(n if length else 0):
        hashes = hashes * _FACTOR + ids[..., i : i + length]
    return hashes


# Sentences, and the spans of each that a model is asked for.

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
