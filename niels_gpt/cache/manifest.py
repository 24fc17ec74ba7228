"""Which files a source's shards are, with size and sha256: what `mix` joins and training checks before it reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from niels_gpt.cache.meta import sha256_file
from niels_gpt.cache.mmap import open_tokens
from niels_gpt.windows import TokenStream


def list_shards(folder: Path, *, root: Path) -> list[dict[str, Any]]:
    """path (relative to `root`), bytes and sha256 of every shard in a folder, in order."""
    return [
        {"path": path.relative_to(root).as_posix(), "bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(folder.glob("shard_*.bin"))
    ]


def open_split(source: Mapping[str, Any], split: str, *, root: Path) -> TokenStream:
    """The shards of one split of a source in a mix, memory-mapped."""
    return TokenStream([open_tokens(root / shard["path"]) for shard in source[split]["shards"]])


def check_shards(sources: Mapping[str, Mapping[str, Any]], *, root: Path) -> None:
    """Raise, naming every shard that is absent or whose bytes are not those the mix was made of."""
    bad = []
    for source in sources.values():
        for shard in (*source["train"]["shards"], *source["val"]["shards"]):
            path = root / shard["path"]
            if not path.is_file():
                bad.append(f"{shard['path']} (missing)")
            elif path.stat().st_size != shard["bytes"] or sha256_file(path) != shard["sha256"]:
                bad.append(f"{shard['path']} (changed)")
    if bad:
        raise ValueError(f"shards differ from the mix: {', '.join(bad)}; `dvc checkout` brings them back")
