"""The manifest of a corpus: its files with size and sha256. `mix` joins them; training checks them before it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_gpt.cache.integrity import changed_files, described_by, name_all
from niels_gpt.cache.meta import read_meta
from niels_gpt.cache.mmap import open_offsets, open_tokens
from niels_gpt.cache.windows import TokenStream
from niels_gpt.files.damage import Damaged


@dataclass(frozen=True)
class Mix:
    """Every source's memory-mapped tokens, by the source's name, and what its held-out part is called in metrics."""

    vocab_size: int
    train: dict[str, TokenStream]
    val: dict[str, TokenStream]
    val_names: dict[str, str]


def open_mix(path: str | Path, *, root: Path, documents: bool = False) -> Mix:
    """Open the shards that a mix file names, below `root`, once each is known to be the one it was made of.

    With `documents`, streams know where theirs begin, and those that share a window do not see each other.
    """
    with described_by(path):
        return _open_mix(read_meta(path), root=root, documents=documents)


def _open_mix(mix: Mapping[str, Any], *, root: Path, documents: bool) -> Mix:
    sources = mix["sources"]
    splits = [source[split] for source in sources.values() for split in ("train", "val")]
    files = [shard for split in splits for shard in split["shards"]]
    check_files([*files, *(split["offsets"] for split in splits if documents)], vocab_size=mix["vocab_size"], root=root)

    def streams(split: str) -> dict[str, TokenStream]:
        return {
            name: TokenStream(
                [open_tokens(root / shard["path"]) for shard in source[split]["shards"]],
                documents=open_offsets(root / source[split]["offsets"]["path"]) if documents else None,
            )
            for name, source in sources.items()
        }

    return Mix(
        vocab_size=mix["vocab_size"],
        train=streams("train"),
        val=streams("val"),
        val_names={name: source["val_name"] for name, source in sources.items()},
    )


def check_files(files: Sequence[Mapping[str, Any]], *, vocab_size: int, root: Path) -> None:
    """Raise, naming every file that is absent, not what the mix was made of, or has ids that the model has not."""
    bad = changed_files(files, root=root)
    for path in (file["path"] for file in files if file["path"].endswith(".bin") and file["path"] not in bad):
        if int(open_tokens(root / path).max()) >= vocab_size:
            bad[path] = f"ids at or above V={vocab_size}"
    if bad:
        first, *others = bad
        raise Damaged(first, f"differs from what the mix was made of: {name_all(bad)}", others=others)
