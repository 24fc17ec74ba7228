"""Sampling of the text a tokenizer is trained on: training documents of every source."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np

from niels_gpt.data.corpus.parts import Texts, read_keys, read_texts, reading_part
from niels_gpt.data.corpus.split import Drawn, split_by_hash
from niels_gpt.data.corpus.split_files import ByHash, Splits, part_rows
from niels_gpt.rng import permutation


def sampled_texts(
    sources: Mapping[str, tuple[Texts, Splits]], *, sample_bytes: int, seed: int
) -> Iterator[tuple[str, str]]:
    """Yield (source, text) of training documents, about `sample_bytes` in total, sampled by `seed`.

    Every source contributes in proportion to its size.
    """
    share = min(1.0, sample_bytes / sum(texts.text_bytes for texts, _ in sources.values()))
    for name in sorted(sources):
        texts, splits = sources[name]
        rows = (
            _sampled_parts(texts, splits, share, seed)
            if isinstance(splits.split, ByHash)
            else _sampled_rows(texts, splits.split["train"], share, seed)
        )
        yield from ((name, text) for text in rows)


def _sampled_rows(texts: Texts, rows: np.ndarray, share: float, seed: int) -> Iterator[str]:
    """Yield sampled texts of a source whose split lists its training rows (`rows`)."""
    if share < 1:
        rows = np.sort(rows[permutation(len(rows), seed)[: max(1, int(len(rows) * share))]])
    first = 0
    for part in texts.parts:
        wanted = rows[slice(*np.searchsorted(rows, (first, first + part.rows)))] - first
        first += part.rows
        if len(wanted):
            with reading_part(texts.store, part) as path:
                for batch in read_texts(path, wanted):
                    yield from batch


# A part has to be read whole to be sampled, so of a large corpus only parts with 8 times the sample's bytes are read.
_OVERSAMPLED = 8


def _sampled_parts(texts: Texts, splits: Splits, share: float, seed: int) -> Iterator[str]:
    """Yield sampled texts of a hash-split source: parts are chosen by a hash of their names, rows by their keys."""
    wanted = share * texts.text_bytes
    chosen, size = set(), 0
    for part in sorted(texts.parts, key=lambda part: hashlib.sha256(f"{seed} {part.name}".encode()).digest()):
        if size >= _OVERSAMPLED * wanted:
            break
        chosen.add(part.name)
        size += part.text_bytes
    # Fraction of these parts' training rows to skip. The keys below have a prefix: with the split's own keys and seed
    # the two choices would be correlated.
    left_out = Drawn(val_frac=max(0.0, 1 - wanted / max(1, size)), seed=seed)
    last = 0
    for part in texts.parts:
        first, last = last, last + part.rows
        if part.name not in chosen:
            continue
        with reading_part(texts.store, part) as path:
            keys = read_keys(path)
            train = part_rows(splits.of_part(first, last), path)["train"]
            kept = split_by_hash([f"sample {keys[row]}" for row in train], left_out)["train"]
            for batch in read_texts(path, train[kept]):
                yield from batch
