"""The data mix: manifests of several sources as one, on which training depends instead of a list of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from niels_gpt.files.checks import read_meta

# What must be the same for all sources of a mix.
_SHARED = ("tokenizer_sha256", "vocab_size", "special_token_ids", "token_dtype")


def join_manifests(manifests: Path, val_names: Mapping[str, str], *, required: Sequence[str]) -> dict[str, Any]:
    """The manifests of the sources in `val_names` as one, with what they share said once."""
    required = ["tokenizer_sha256", "vocab_size", *required]
    joined = {name: read_meta(manifests / f"{name}.json", required=required) for name in sorted(val_names)}
    shared = [{key: manifest.pop(key) for key in _SHARED if key in manifest} for manifest in joined.values()]
    check_tokenizers(dict(zip(joined, shared, strict=True)))
    return {
        **shared[0],
        "sources": {name: {"val_name": val_names[name], **manifest} for name, manifest in joined.items()},
    }


def check_tokenizers(shared: Mapping[str, Mapping[str, Any]]) -> None:
    """Ids of one tokenizer mean nothing to another: raise, naming the manifests that differ from the first."""
    first, *others = shared
    differing = [name for name in others if shared[name] != shared[first]]
    if differing:
        raise ValueError(
            f"{', '.join(differing)} and {first} were encoded by different tokenizers: encode them all again"
        )
