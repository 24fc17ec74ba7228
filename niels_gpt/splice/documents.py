"""Documents of a source by number, over all of its token files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from niels_gpt.cache.integrity import read_offsets
from niels_gpt.cache.manifest import Places, check_files, listed_files
from niels_gpt.cache.token_files import TokenFile
from niels_gpt.files.ranks import ALONE, Ranks


class TokenStore:
    """Documents of one split of a source, each read from its file when it is asked for. `manifest` lists the files."""

    def __init__(
        self,
        source: str,
        manifest: Mapping[str, Any],
        *,
        places: Places,
        ranks: Ranks = ALONE,
        split: str = "train",
    ) -> None:
        files = list(listed_files({source: manifest}, places, documents=True))
        check_files(files, vocab_size=manifest["vocab_size"], ranks=ranks)
        parts, at = manifest[split]["parts"], manifest.get("at")
        self._tokens = [TokenFile.whole(places.path(source, at, part["file"])) for part in parts]
        offsets = [
            read_offsets(places.path(source, at, part["offsets"]["file"]), tokens=len(tokens))
            for part, tokens in zip(parts, self._tokens, strict=True)
        ]
        self._starts = [starts for starts, _ in offsets]
        self._lengths = [lengths for _, lengths in offsets]
        self.lengths = np.concatenate(self._lengths)
        self.trained_tokens = int(manifest["train"]["tokens"])  # pretraining draws from the first so many
        self._first = np.cumsum([0, *map(len, self._starts)])

    def document(self, row: int) -> np.ndarray:
        if not 0 <= row < len(self.lengths):
            raise IndexError(f"there is no document {row} among {len(self.lengths):,}")
        part = int(np.searchsorted(self._first, row, side="right")) - 1
        start = self._starts[part][row - self._first[part]]
        return self._tokens[part][start : start + self.lengths[row]]
