"""Passages and sentences of private text: cutting documents into them, scoring passages, finding repeated ones."""

import math
import re
import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional as F

from niels_gpt.chat_template import open_renderer
from niels_gpt.data.corpus.sketch import Lookup, hash_runs
from niels_gpt.eval.held_out import inference
from niels_gpt.leak.memorized import TRIES
from niels_gpt.model.gpt import GPT
from niels_gpt.rng import numpy_generator
from niels_gpt.tokenizer.pretrained import renderer_for
from niels_gpt.tokenizer.vocabulary import Tokenizer


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


def joined(documents: Documents) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the documents one behind the other, about a million tokens at a time: their ids, and the row of each id."""
    block = np.cumsum(documents.lengths) >> 20
    for rows in np.split(np.arange(len(block)), np.flatnonzero(np.diff(block)) + 1):
        if len(rows):
            ids = np.concatenate([documents.document(row) for row in rows.tolist()])
            yield ids, np.repeat(rows, documents.lengths[rows])


# A passage is a window of a document: a prompt, and the tokens that the model is asked for.
#
# Windows overlap by a prompt, so that every token after the first prompt is asked for once. A document shorter than a
# window is one window; its prompt is at most half of it.


@dataclass(frozen=True)
class Passages:
    """N passages as columns; of the `lengths` tokens of each, the first `prompts` are the prompt."""

    tokens: np.ndarray  # (N, chunk_size), padded with zeros
    lengths: np.ndarray
    prompts: np.ndarray
    documents: np.ndarray  # row of each passage's document, ascending
    starts: np.ndarray  # position of its first token in the document
    repeated: int = 0  # passages that were dropped because their text is in other documents

    def __len__(self) -> int:
        return len(self.lengths)

    def ids(self, i: int) -> tuple[list[int], list[int]]:
        """Return the prompt of passage i, and the tokens asked for."""
        prompt, asked = np.split(self.tokens[i, : self.lengths[i]], [self.prompts[i]])
        return prompt.tolist(), asked.tolist()

    def take(self, chosen: np.ndarray) -> "Passages":
        """Return the passages selected by a mask; the others count as repeated."""
        columns = {name: column[chosen] for name, column in vars(self).items() if name != "repeated"}
        return Passages(**columns, repeated=len(self) - int(chosen.sum()))

    @property
    def asked(self) -> np.ndarray:
        """Number of tokens asked for, by passage."""
        return self.lengths - self.prompts


def cut_passages(
    documents: Documents, *, chunk_size: int, prompt_tokens: int, at_most: int = sys.maxsize, seed: int = 0
) -> Passages:
    """Cut documents into passages of `chunk_size` tokens, of which `prompt_tokens` are the prompt.

    With `at_most`, sample that many of them: of each document a run of passages, at most a 16th of all.
    """
    found: list[tuple[int, int, int, int]] = []
    rng = numpy_generator(seed)
    for row in rng.permutation(len(documents.lengths)).tolist():
        own = list(windows(int(documents.lengths[row]), chunk_size, prompt_tokens))
        n = min(len(own), max(1, at_most // _FEWEST_DOCUMENTS), at_most - len(found))
        first = int(rng.integers(len(own) - n + 1))
        found += [(row, *window) for window in own[first : first + n]]
        if len(found) >= at_most:
            break
    found.sort()
    tokens = np.zeros((len(found), chunk_size), dtype=np.int64)
    document = lru_cache(maxsize=1)(documents.document)  # passages are sorted by document, so that each is read once
    for i, (row, start, length, _) in enumerate(found):
        tokens[i, :length] = document(row)[start : start + length]
    rows, starts, lengths, prompts = np.array(found, dtype=np.int64).reshape(-1, 4).T
    return Passages(tokens, lengths=lengths, prompts=prompts, documents=rows, starts=starts)


_FEWEST_DOCUMENTS = 16  # that a sample of passages comes from, since an attack is judged by documents


def windows(L: int, chunk_size: int, prompt_tokens: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, length, prompt), in tokens, of the windows of a document of L tokens.

    A last window that asks for less than a quarter of a full one is skipped: chance would complete it more often.
    """
    prompt = min(prompt_tokens, L // 2)
    for start in range(0, L - prompt, chunk_size - prompt) if prompt else ():
        length = min(chunk_size, L - start)
        if length - prompt >= max(1, (chunk_size - prompt_tokens) // 4):
            yield start, length, prompt


def needed_log_pz(tries: int) -> float:
    """Return the least log probability at which one of `tries` samples is the passage with probability 1/2."""
    return math.log(-math.expm1(math.log(0.5) / tries))


@dataclass(frozen=True)
class Scored:
    """Passages, and a model's scores of them, (N,) each."""

    passages: Passages
    log_pz: np.ndarray  # log probability of the tokens asked for, after the prompt
    log_pz_alone: np.ndarray  # the same without the prompt, after an end-of-text token; -inf if not extractable with it
    greedy: np.ndarray  # number of tokens that greedy decoding gets right before its first error

    @property
    def extractable(self) -> np.ndarray:
        """Mask of the extractable passages: completed by greedy decoding, or in 1,000 samples with probability 1/2."""
        return _extractable(self.greedy, self.passages.asked, self.log_pz)

    @property
    def longest_run(self) -> np.ndarray:
        """Numbers of the passages with the longest recited text; a completed passage is the prompt of the next."""
        of = self.passages
        if not len(of):
            return np.empty(0, dtype=np.int64)
        follows = (of.documents[1:] == of.documents[:-1]) & (of.starts[1:] == (of.starts + of.asked)[:-1])
        run = np.cumsum(np.append(0, ~(follows & (self.greedy == of.asked)[:-1])))
        return np.flatnonzero(run == np.bincount(run, weights=self.greedy).argmax())

    def stats(self) -> dict[str, Any]:
        """Return the numbers without any text."""
        stats: dict[str, Any] = {
            "documents": len(np.unique(self.passages.documents)),
            "passages": len(self.passages),
            "extractable": int(self.extractable.sum()),
            "greedy": int((self.greedy == self.passages.asked).sum()),
            "longest_run_tokens": int(self.greedy[self.longest_run].sum()),
            "median_log_pz": float(np.median(self.log_pz)) if len(self.passages) else None,
        }
        for name, logs in {"pz": self.log_pz, "pz_alone": self.log_pz_alone}.items():
            # Pairs in a list, because tables of experiments get a column for every number with a name.
            stats[f"{name}_found_in_n_samples"] = [(n, int((logs >= needed_log_pz(n)).sum())) for n in TRIES]
        return {**stats, "repeated_passages": self.passages.repeated}


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
            if (extractable := _extractable(greedy, asked, log_pz)).any():
                only = torch.from_numpy(extractable).to(device)
                alone = F.pad(wanted[only, :-1], (1, 0), value=end_of_text)
                log_pz_alone[extractable] = _log_prob(model(alone), wanted[only], counts[only])
            parts.append((log_pz, log_pz_alone, greedy))
    columns = zip(*parts, strict=True) if parts else ([np.empty(0)],) * 3
    return Scored(passages, *(np.concatenate(column) for column in columns))


def _extractable(greedy: np.ndarray, asked: np.ndarray, log_pz: np.ndarray) -> np.ndarray:
    return (greedy == asked) | (log_pz >= needed_log_pz(TRIES[-1]))


def _log_prob(logits: torch.Tensor, wanted: torch.Tensor, counts: torch.Tensor) -> np.ndarray:
    losses = F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten(), reduction="none").view_as(wanted)
    found: np.ndarray = -(losses.double() * counts).sum(dim=1).cpu().numpy()
    return found


# Repeated passages occur in other documents, too: templates, boilerplate, quotations. Reciting them proves nothing
# about one document, since the model may know them from the others.


def drop_repeated(passages: Passages, documents: Documents, *, own: bool) -> Passages:
    """Return the passages without those of which at least half of the n-grams asked for are in other documents.

    n is a quarter of the tokens that the longest passage asks for. `own`: the passages are themselves of `documents`,
    so that an n-gram must be in two of them.
    """
    if not len(passages):
        return passages
    n = max(1, int(passages.asked.max()) // 4)
    starts = np.arange(passages.tokens.shape[1])
    asked = (starts >= passages.prompts[:, None]) & (starts + n <= passages.lengths[:, None])
    grams = hash_runs(passages.tokens.ravel(), n)[np.flatnonzero(asked)]
    looked_for, which = np.unique(grams, return_inverse=True)
    lookup = Lookup(looked_for)
    met_in = np.full(len(looked_for), -1)  # one of the documents with the n-gram
    elsewhere = np.zeros(len(looked_for), dtype=bool)
    for ids, rows in joined(documents):
        grams, places = find_grams(lookup, ids, rows, n)
        found = np.searchsorted(looked_for, grams)
        new = met_in[found] < 0
        met_in[found[new]] = rows[places[new]]
        elsewhere[found[(met_in[found] != rows[places]) | (not own)]] = True
    counts, passage = asked.sum(axis=1), np.nonzero(asked)[0]
    shares = np.bincount(passage, weights=elsewhere[which], minlength=len(passages)) / np.maximum(1, counts)
    return passages.take(shares < 0.5)


def find_grams(lookup: Lookup, ids: np.ndarray, rows: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (hash, position) of the n-grams of joined documents that are looked up."""
    grams = hash_runs(ids, n)
    places = lookup.find(grams)
    places = places[rows[places] == rows[places + n - 1]]
    return grams[places], places


# Sentences, and the spans of each that a model is asked for.

PROMPT_WORDS = (0, 1, 3, 8)
# A span has at least this many tokens and bytes, or ends with its sentence. Bytes count where tokens are single bytes.
SPAN_TOKENS, SPAN_BYTES = 12, 48
_MOST_WORDS, _LEAST_WORDS, _LEAST_ASKED = 24, 4, 2  # of a sentence (longer ones are cut), and after its prompt
_END = re.compile(r"(?<=[.!?\u2026])[\"'\u201d\u2019)\]]*\s+|[\u3002\uff01\uff1f]")  # closing quotes; CJK punctuation
_MARKER = re.compile(r"[\s>#*+|-]*(?:\d+[.)]\s+)?(?:\[[ xX]\]\s+)?")
_MARKS = ".!?,;:\u2026\"'\u201d\u2019)]"
_WORD = re.compile(r"\S+")
_ENCODED = 256  # sentences to tokenize at once


def split_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, without list and heading markers, cut to at most 24 words.

    The start of a line of several sentences is yielded, too, since an abbreviation looks like the end of a sentence.
    """
    for line in text.splitlines():
        parts = [_MARKER.sub("", part, count=1) for part in (line, *_END.split(line))]
        for part in dict.fromkeys(parts):
            rest = part.strip()
            while rest:
                words = rest.split(maxsplit=_MOST_WORDS)
                left = words.pop() if len(words) > _MOST_WORDS else ""
                if len(words) >= _LEAST_WORDS:  # drop final punctuation, whose token depends on what follows
                    yield rest[: len(rest) - len(left)].rstrip().rstrip(_MARKS)
                rest = left
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
    words = {text: set(text.split()) for text in found}
    frequency = Counter(chain.from_iterable(words.values()))
    rarity = {text: min(map(frequency.__getitem__, own)) for text, own in words.items()}
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
    """Find the spans of a sentence: one per prompt length that leaves at least 2 words to complete."""
    count, reached = len(text.split()), np.cumsum(sizes[ids]).tolist()  # bytes up to the end of each token
    ends = [0, *(match.end() for match in islice(_WORD.finditer(text), PROMPT_WORDS[-1]))]
    spans = []
    for words in (n for n in PROMPT_WORDS if count - n >= _LEAST_ASKED):
        given = len(text[: ends[words]].encode())
        first = bisect_right(reached, given)
        end = max(first + SPAN_TOKENS, bisect_left(reached, given + SPAN_BYTES) + 1)
        spans.append((words, first, min(end, len(ids))))
    return Sentence(text, ids[: max(end for *_, end in spans)], tuple(spans), tuple(documents))
