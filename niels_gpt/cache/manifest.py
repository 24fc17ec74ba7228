"""The manifest of a corpus: its files with size and sha256. `mix` joins them; training checks them before it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPE
from niels_gpt.cache.integrity import changed_files, described_by, name_all, pooled
from niels_gpt.cache.meta import read_meta
from niels_gpt.cache.mmap import open_tokens
from niels_gpt.cache.token_files import TokenFile
from niels_gpt.cache.windows import TokenStream
from niels_gpt.files.damage import Damaged
from niels_gpt.files.ranks import ALONE, Ranks


@dataclass(frozen=True)
class Mix:
    """Every source's tokens, by the source's name, and what its held-out part is called in metrics."""

    vocab_size: int
    train: dict[str, TokenStream]
    val: dict[str, TokenStream]
    val_names: dict[str, str]


def open_mix(path: str | Path, *, root: Path, documents: bool = False, ranks: Ranks = ALONE) -> Mix:
    """The shards that a mix file names, below `root`, once each is known to be the one it was made of: of several ranks
    each hashes its share of them. They are opened when a window falls into them.

    With `documents`, streams know where theirs begin, and those that share a window do not see each other.
    """
    with described_by(path):
        return _open_mix(read_meta(path), root=root, documents=documents, ranks=ranks)


def _open_mix(mix: Mapping[str, Any], *, root: Path, documents: bool, ranks: Ranks) -> Mix:
    sources = mix["sources"]
    splits = [source[split] for source in sources.values() for split in ("train", "val")]
    files = [shard for split in splits for shard in split["shards"]]
    offsets = [split["offsets"] for split in splits if documents]
    check_files([*files, *offsets], vocab_size=mix["vocab_size"], root=root, ranks=ranks)

    def stream(split: Mapping[str, Any]) -> TokenStream:
        shards = [
            TokenFile(str(root / shard["path"]), shard["bytes"] // TOKEN_DTYPE.itemsize) for shard in split["shards"]
        ]
        if not documents:
            return TokenStream(shards)
        starts, ends = np.load(root / split["offsets"]["path"]), np.cumsum([len(shard) for shard in shards])
        parts = np.split(starts, np.searchsorted(starts, ends[:-1]))
        return TokenStream(
            shards, documents=[part - end + len(s) for part, end, s in zip(parts, ends, shards, strict=True)]
        )

    def streams(split: str) -> dict[str, TokenStream]:
        return {name: stream(source[split]) for name, source in sources.items()}

    return Mix(
        vocab_size=mix["vocab_size"],
        train=streams("train"),
        val=streams("val"),
        val_names={name: source["val_name"] for name, source in sources.items()},
    )


def check_files(files: Sequence[Mapping[str, Any]], *, vocab_size: int, root: Path, ranks: Ranks = ALONE) -> None:
    """Raise, naming every file that is absent, not what the mix was made of, or has ids that the model has not.
    Of several ranks each reads its share of the files."""
    own = ranks.files(files)
    bad = changed_files(own, root=root)
    for path in (file["path"] for file in own if file["path"].endswith(".bin") and file["path"] not in bad):
        if int(open_tokens(root / path).max()) >= vocab_size:
            bad[path] = f"ids at or above V={vocab_size}"
    bad = pooled(bad, ranks=ranks)
    if bad:
        first, *others = bad
        raise Damaged(first, f"differs from what the mix was made of: {name_all(bad)}", others=others)
