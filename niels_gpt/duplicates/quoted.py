"""Masks of the held-out tokens that lie in quotes: those with at least one byte in a quoted span."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.cache.windows import TokenFile, TokenStream
from niels_gpt.chat_format import chat_key
from niels_gpt.chat_template import chat_renderer
from niels_gpt.tokenizer.vocabulary import Tokenizer

Spans = Mapping[str, Sequence[Sequence[int]]]  # document key -> (start, end) of each quote, in bytes of its text


def quoted_stream(stream: TokenStream, spans: Spans, tokenizer: Tokenizer) -> tuple[TokenStream, dict[str, int]]:
    """Return a stream with 1 for each token that lies in a quote and 0 for the others, and counts of the quotes.

    `spans` is keyed by part and number ("part-00000/7"; see `duplicates.overlap.Quotes`).
    """
    wanted: dict[str, dict[int, Sequence[Sequence[int]]]] = defaultdict(dict)
    for key, own in spans.items():
        part, _, document = key.rpartition("/")
        wanted[part][int(document)] = own
    token_bytes, eot = tokenizer.token_bytes(), tokenizer.special_token_ids()["eot"]
    marks, quotes, documents = [], 0, 0
    for file in stream.arrays:
        mark = np.zeros(len(file), dtype=np.uint8)
        found = wanted.get(Path(file.path).stem, {}) if isinstance(file, TokenFile) else {}
        if found:
            ids = file[:]
            # No text encodes to the end-of-text id, so each one ends a document.
            begins = np.append(0, np.flatnonzero(ids == eot) + 1)
            for number, own in found.items():
                if number + 1 < len(begins):  # later documents were cut off by the token budget
                    where = slice(begins[number], begins[number + 1])
                    mark[where] = quoted_tokens(token_bytes[ids[where]], own)
                    quotes, documents = quotes + len(own), documents + 1
        marks.append(mark)
    return TokenStream(marks), {"quotes": quotes, "quoted_documents": documents}


def quoted_chats(
    chats: SFTExampleDataset, spans: Spans, tokenizer: Tokenizer
) -> tuple[dict[int, np.ndarray], dict[str, int]]:
    """Return {example number: mask of its quoted tokens} of the examples with quotes, and counts of the quotes.

    `spans` is keyed by `chat_format.chat_key`.
    """
    chat, marks, quotes = chat_renderer(tokenizer), {}, 0
    for row in range(len(chats)) if spans else ():
        text, lengths = chat.contents(chats.whole(row))
        if own := spans.get(chat_key(text)):
            marks[row] = quoted_tokens(lengths, own)
            quotes += len(own)
    return marks, {"quotes": quotes, "quoted_documents": len(marks)}


def quoted_tokens(lengths: np.ndarray, spans: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the mask of a document's tokens that have a byte in one of `spans`; `lengths`: bytes of each token."""
    ends = np.cumsum(lengths)
    found = np.zeros(len(lengths), dtype=bool)
    for start, end in spans:
        found[np.searchsorted(ends, start, side="right") : np.searchsorted(ends - lengths, end)] = True
    return found & (lengths > 0)
