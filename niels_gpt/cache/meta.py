"""Provenance of a cache: what it was made of and how. Never used to decide whether it is fresh."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from niels_gpt.files.atomic import write_json
from niels_gpt.files.checksums import sha256_file
from niels_gpt.files.descriptions import read_meta

__all__ = ["describe_origin", "read_meta", "sha256_file", "write_meta"]


def write_meta(path: str | Path, meta: dict[str, Any]) -> None:
    """No times, no absolute paths in `meta`: equal inputs must give equal bytes."""
    write_json(path, meta)


def describe_origin(source: Mapping[str, Any], rule: Mapping[str, Any]) -> dict[str, Any]:
    """What a cache's meta.json says of where its text came from and how it was split."""
    return {
        "dataset_name": source.get("dataset") or source["name"],
        "dataset_config": source.get("config"),
        "dataset_revision": source.get("revision"),
        "streaming": source["streaming"],
        "split_rule": rule["by"],
        "seed": rule.get("seed"),
    }
