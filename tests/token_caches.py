"""Helpers that write small token caches and read their contents."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.build_cache import build_pretrain_cache
from niels_gpt.cache.meta import sha256_file
from niels_gpt.tokenizer.tokenizers import ByteTokenizer

TOK = ByteTokenizer()
SYS, USR, ASST, EOT = (TOK.special_token_ids()[name] for name in ("sys", "usr", "asst", "eot"))
TEXTS = [f"text number {i} " * (1 + i % 7) for i in range(200)]
EXCHANGES = [[{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"answer {i}"}] for i in range(40)]
CHATS = [exchange * (1 + i % 3) for i, exchange in enumerate(EXCHANGES)]


def pretrain(out: Path, **changes: object) -> Path:
    options = {
        "tokenizer": TOK,
        "max_train_tokens": 5000,
        "max_val_tokens": 500,
        "shard_bytes": 1000,
        "seed": 1,
        "shuffle_buffer": 16,
    }
    build_pretrain_cache(TEXTS, str(out), **{**options, **changes})  # type: ignore[arg-type]
    return out


def files(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): sha256_file(p) for p in sorted(folder.rglob("*")) if p.is_file()}


def tokens(folder: Path) -> np.ndarray:
    return np.concatenate([np.fromfile(p, "<u2") for p in sorted(folder.glob("shard_*.bin"))])


def documents(folder: Path) -> list[str]:
    ids, offsets = tokens(folder), np.load(folder / "offsets.npy")
    ends = np.append(offsets[1:], len(ids))
    assert all(ids[end - 1] == EOT for end in ends)
    return [TOK.decode(ids[a:b]) for a, b in zip(offsets, ends, strict=True)]


def documents_of(folder: Path, part: Mapping[str, Any]) -> list[str]:
    """Return the documents of one token file, as many as the manifest counts."""
    ids = np.fromfile(folder / part["file"], "<u2")[: part["tokens"]]
    offsets = np.load(folder / part["offsets"]["file"])[: part["documents"]]
    ends = np.append(offsets[1:], len(ids))
    assert all(ids[end - 1] == EOT for end in ends)
    return [TOK.decode(ids[a:b]) for a, b in zip(offsets, ends, strict=True)]


def write_parts(
    folder: Path, parts: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]], *, val_name: str = "v"
) -> dict[str, Any]:
    """Write a token file for each (ids, offsets) of each split; return the source's entry in a mix."""
    source: dict[str, Any] = {"val_name": val_name}
    for split, pairs in parts.items():
        (folder / split).mkdir(parents=True)
        source[split] = {"tokens": sum(len(ids) for ids, _ in pairs), "parts": []}
        for i, (ids, offsets) in enumerate(pairs):
            names = f"{split}/{split}_{i}.bin", f"{split}/{split}_{i}.idx.npy"
            ids.astype("<u2").tofile(folder / names[0])
            np.save(folder / names[1], offsets)
            tokens, listed = (
                {"file": name, "bytes": (folder / name).stat().st_size, "sha256": sha256_file(folder / name)}
                for name in names
            )
            counts = {"tokens": len(ids), "documents": len(offsets)}
            source[split]["parts"].append({**tokens, **counts, "offsets": listed})
    return source


def chats(folder: Path, split: str) -> list[list[int]]:
    """Return the token ids of the examples of one split of an SFT cache."""
    ids, offsets = np.fromfile(folder / f"{split}_tokens.bin", "<u2"), np.load(folder / f"{split}_idx.npy")
    assert offsets.dtype == np.int64
    return [part.tolist() for part in np.split(ids, offsets[1:])]
