"""Which files a corpus is, with size and sha256: what `mix` joins, and what training checks before it reads a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_gpt.cache.meta import read_meta, sha256_file
from niels_gpt.cache.mmap import open_tokens
from niels_gpt.windows import TokenStream


@dataclass(frozen=True)
class Mix:
    """Every source's memory-mapped tokens, by the source's name, and what its held-out part is called in metrics."""

    vocab_size: int
    train: dict[str, TokenStream]
    val: dict[str, TokenStream]
    val_names: dict[str, str]


def list_shards(folder: Path, *, root: Path) -> list[dict[str, Any]]:
    """path (relative to `root`), bytes and sha256 of every shard in a folder, in order."""
    return [
        {"path": path.relative_to(root).as_posix(), "bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(folder.glob("shard_*.bin"))
    ]


def open_mix(path: str | Path, *, root: Path) -> Mix:
    """Open the shards that a mix file names, below `root`, once each is known to be the one it was made of."""
    mix = read_meta(path)
    sources = mix["sources"]
    _check_shards(sources, vocab_size=mix["vocab_size"], root=root)

    def streams(split: str) -> dict[str, TokenStream]:
        return {
            name: TokenStream([open_tokens(root / shard["path"]) for shard in source[split]["shards"]])
            for name, source in sources.items()
        }

    return Mix(
        vocab_size=mix["vocab_size"],
        train=streams("train"),
        val=streams("val"),
        val_names={name: source["val_name"] for name, source in sources.items()},
    )


def _check_shards(sources: Mapping[str, Mapping[str, Any]], *, vocab_size: int, root: Path) -> None:
    """Raise, naming every shard that is absent, not what the mix was made of, or has ids that the model has not."""
    bad = []
    for source in sources.values():
        for shard in (*source["train"]["shards"], *source["val"]["shards"]):
            path = root / shard["path"]
            if not path.is_file():
                bad.append(f"{shard['path']} (missing)")
            elif path.stat().st_size != shard["bytes"] or sha256_file(path) != shard["sha256"]:
                bad.append(f"{shard['path']} (changed)")
            elif int(open_tokens(path).max()) >= vocab_size:
                bad.append(f"{shard['path']} (ids at or above V={vocab_size})")
    if bad:
        raise ValueError(f"shards differ from the mix: {', '.join(bad)}; `dvc checkout` brings them back")
