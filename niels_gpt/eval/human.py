"""What people wrote, for the report card: held-out text, and what assistants say in held-out chats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import dropwhile, takewhile

import numpy as np

from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.cache.windows import TokenStream
from niels_gpt.eval.written import MAX_BYTES, Text
from niels_gpt.tokenizer.vocabulary import Tokenizer


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
