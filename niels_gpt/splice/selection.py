"""Selection of the documents to train on, by their lengths in tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Literal

from niels_gpt.config import Count, check_value

SelectMode = Literal["first", "longest", "shortest", "random"]


def select_documents(
    lengths: Sequence[int],
    *,
    n: int,
    mode: str,
    min_len: int | None = None,
    max_len: int | None = None,
    doc_index: int | None = None,
    dataset_name: str = "",
    strict_num_docs: bool = True,
) -> tuple[list[int], str]:
    """Return (rows, reason): n rows by the policy `mode` among nonempty documents of min_len to max_len tokens.

    A `doc_index` of allowed length is selected directly. If too few documents are allowed, n = 1 falls back to the
    longest document, and n > 1 raises, or with strict_num_docs=False fills up with the longest others.
    """
    check_value("doc_select_mode", mode, SelectMode)
    check_value("num_docs", n, Count)
    check_doc_index(n, doc_index)
    filled = [row for row, length in enumerate(lengths) if length > 0]
    allowed = [
        row
        for row in filled
        if (min_len is None or lengths[row] >= min_len) and (max_len is None or lengths[row] <= max_len)
    ]
    rejected = ""
    if doc_index is not None:
        if not 0 <= doc_index < len(lengths):
            raise ValueError(f"doc_index out of range: {doc_index} of {len(lengths)} documents")
        if doc_index in allowed:
            return [doc_index], "doc_index"
        rejected = "doc_index_rejected_"
    if not filled:
        raise ValueError("there is no document with a token in it: choose another source")
    order = _order(mode, lengths, dataset_name)
    longest = _order("longest", lengths, dataset_name)
    if len(allowed) >= n:
        return sorted(allowed, key=order)[:n], f"{rejected}policy"
    if n == 1:
        return [min(filled, key=longest)], f"{rejected}fallback_longest"
    others = sorted(set(filled) - set(allowed), key=longest)
    if strict_num_docs or len(allowed) + len(others) < n:
        raise ValueError(
            f"only {len(allowed)} of {n} documents match min_doc_length={min_len} and max_doc_length={max_len}: widen "
            "them, lower num_docs, or set strict_num_docs to false"
        )
    return [*sorted(allowed, key=order), *others[: n - len(allowed)]], "backfilled_longest"


def within_first_tokens(lengths: Sequence[int], tokens: int) -> list[int]:
    """Return the lengths, with 0 (never selected) for documents that do not lie wholly in the first `tokens` tokens."""
    # Sequences of 1 token: the token budget ends with a document, not with a frame.
    eligible = set(training_subset(lengths, S=1, max_train_batches=tokens, initial_batch_size=1)[1])
    return [length if row in eligible else 0 for row, length in enumerate(lengths)]


def check_doc_index(n: int, doc_index: int | None) -> None:
    """Raise ValueError if `doc_index` is given for more than one document."""
    if doc_index is not None and n != 1:
        raise ValueError(f"doc_index names one document, num_docs is {n}: leave one of them out")


def _order(mode: str, lengths: Sequence[int], dataset_name: str) -> Callable[[int], tuple[int, int]]:
    """Return the sort key of rows; ties go by row. "random" hashes the row, keyed with the dataset's name."""
    if mode == "random":
        key = hashlib.blake2b(dataset_name.encode(), digest_size=8).digest()

        def shuffled(row: int) -> tuple[int, int]:
            digest = hashlib.blake2b(row.to_bytes(8, "little"), key=key, digest_size=8).digest()
            return int.from_bytes(digest, "big"), row

        return shuffled
    sign = {"first": 0, "longest": -1, "shortest": 1}[mode]
    return lambda row: (sign * lengths[row], row)


def training_subset(
    lengths: Sequence[int],
    *,
    S: int,
    max_train_batches: int | None = None,
    initial_batch_size: int | None = None,
    num_validation_sequences: int = 0,
    experiment_budget: float | None = None,
    target_budget: float | None = None,
) -> tuple[int, list[int]]:
    """Return (cutoff_tokens, rows): the rows that lie wholly in the first tokens, up to what a training run reads.

    That part is counted in sequences of S tokens: all of them times experiment_budget / target_budget, less
    num_validation_sequences, and at most max_train_batches batches of initial_batch_size.
    """
    sequences = sum(lengths) // S
    if experiment_budget is not None and target_budget is not None:
        sequences = int(sequences * experiment_budget / target_budget)
    sequences -= num_validation_sequences
    if max_train_batches is not None:
        if initial_batch_size is None:
            raise ValueError("max_train_batches counts batches of initial_batch_size sequences: give that, too")
        sequences = min(sequences, max_train_batches * initial_batch_size)
    cutoff, end, rows = max(0, sequences) * S, 0, []
    for row, length in enumerate(lengths):
        end += length
        if end <= cutoff:
            rows.append(row)
    if not rows:
        raise ValueError(
            f"no document ends within the first {cutoff} tokens that are trained on: train on more of them"
        )
    return cutoff, rows
