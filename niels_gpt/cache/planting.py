"""A copy of a source's training tokens with more documents among them: what is there already is not touched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from niels_gpt.cache.formats import write_token_file
from niels_gpt.cache.token_files import OffsetFile, TokenFile
from niels_gpt.cache.windows import TokenStream
from niels_gpt.rng import numpy_generator


class TrainDocuments(Protocol):
    """Documents by number, of which training draws from the first `trained_tokens` tokens."""

    trained_tokens: int

    @property
    def lengths(self) -> np.ndarray: ...

    def document(self, row: int) -> np.ndarray: ...


def plant(
    documents: TrainDocuments, planted: Sequence[np.ndarray], *, folder: Path, seed: int, apart: bool
) -> TokenStream:
    """What training draws from, written to the folder, with each of the planted ones before a document that the seed
    chooses. `apart`: documents that share a window do not see each other."""
    trained = int(np.searchsorted(documents.lengths.cumsum(), documents.trained_tokens, side="right"))
    places = numpy_generator(seed).integers(0, trained + 1, len(planted))

    def joined() -> Iterator[np.ndarray]:
        for row in range(trained + 1):
            yield from (planted[i] for i in np.flatnonzero(places == row).tolist())
            if row < trained:
                yield documents.document(row)

    tokens, offsets = folder / "train.bin", folder / "train.idx.npy"
    write_token_file(tokens, offsets, joined())
    return TokenStream([TokenFile.whole(tokens)], documents=[OffsetFile(str(offsets))] if apart else None)
