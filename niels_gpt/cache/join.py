"""Data mix: one file with the manifests of all sources, so that training depends on it and not on many files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from niels_gpt.cache.formats import ANSWER_IDS
from niels_gpt.files.checks import read_meta

# Keys whose values must be equal in all sources of a mix; the joined file has them once, at the top level.
_SHARED = ("tokenizer_sha256", "vocab_size", "special_token_ids", "token_dtype", ANSWER_IDS)


def join_manifests(manifests: Path, val_names: Mapping[str, str], *, required: Sequence[str]) -> dict[str, Any]:
    """Return one manifest of the sources in `val_names`, after checking that they share one tokenizer.

    `val_names` maps each source to the name of its validation set in metrics; `required` are keys of every manifest.
    """
    required = ["tokenizer_sha256", "vocab_size", *required]
    joined = {name: read_meta(manifests / f"{name}.json", required=required) for name in sorted(val_names)}
    shared = [{key: manifest.pop(key) for key in _SHARED if key in manifest} for manifest in joined.values()]
    check_tokenizers(dict(zip(joined, shared, strict=True)))
    return {
        **shared[0],
        "sources": {name: {"val_name": val_names[name], **manifest} for name, manifest in joined.items()},
    }


def check_tokenizers(shared: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise a ValueError naming the sources that were encoded by another tokenizer than the first."""
    first, *others = shared
    differing = [name for name in others if shared[name] != shared[first]]
    if differing:
        raise ValueError(
            f"{', '.join(differing)} and {first} were encoded by different tokenizers: encode them all again"
        )
