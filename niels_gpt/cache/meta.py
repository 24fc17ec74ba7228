"""Provenance metadata of a cache (meta.json); never used to decide whether the cache is up to date.

It must not contain times or absolute paths, so that equal inputs give equal bytes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from niels_gpt.files.atomic import write_json as write_meta
from niels_gpt.files.checks import read_meta, sha256_file

__all__ = ["dataset_label", "describe_origin", "read_meta", "sha256_file", "write_meta"]


def dataset_label(dataset: str) -> str:
    """Return a hub id unchanged, or the bare name of a local file or folder, since meta.json has no local paths."""
    path = Path(dataset)
    return path.absolute().name if path.is_absolute() or path.exists() else dataset


def describe_origin(source: Mapping[str, Any], rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return the origin and split settings of a source for its meta.json."""
    return {
        "dataset_name": dataset_label(source["dataset"]) if source.get("dataset") else source["name"],
        "dataset_config": source.get("config"),
        "dataset_revision": source.get("revision"),
        "streaming": source["streaming"],
        "split_rule": rule["by"],
        "seed": rule.get("seed"),
    }
