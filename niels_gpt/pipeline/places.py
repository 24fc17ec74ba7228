"""Where the parts of a source lie: in the stage's output, which DVC keeps and pushes, or in a store of the user's.

A stored source is too large for DVC to hash and copy. Its parts lie in a store under a fingerprint of all that decides
their bytes, and DVC keeps the manifest that names them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_gpt.cache.manifest import Places
from niels_gpt.files.descriptions import described_by, read_meta
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.files.store import Store
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.stage import Stage, project_root
from niels_gpt.splice.documents import TokenStore


@dataclass(frozen=True)
class Place:
    """Where a stage writes the parts of a source: into its output `out`, or, under the name `at`, into a store."""

    out: Path
    store: Store
    at: str | None

    def __str__(self) -> str:
        return str(self.out) if self.at is None else f"{self.store.root} (which `dvc push` does not carry)"

    def finish(self, files: Collection[str]) -> None:
        """In an output only these stay: it is published whole, so records serve nobody; and which parts were begun when
        a budget turned out to be enough depends on the number of workers, on which no output may depend."""
        if self.at is None:
            for file in self.store.files():
                if file not in files:
                    self.store.remove(file)
            self.store.remove("done")


def place_of(stage: Stage, out: Path, what: str, *made_of: Any) -> Place:
    """For one kind of file (`what`) of the stage's source, made of this, and by the stage's code."""
    source = stage.params.sources.get(stage.key)
    if source is None or not source.stored:
        return Place(out, Store(str(stage.out(out))), at=None)
    code = [digest for dep, digest in sorted(stage.inputs.deps.items()) if Path(dep).is_relative_to(layout.CODE)]
    fingerprint = hashlib.sha256(json.dumps([*made_of, code], sort_keys=True).encode()).hexdigest()[:32]
    at = f"{what}/{stage.key}/{fingerprint}"
    store = store_of(stage.params, stage.key)
    assert store is not None, "a rule of params.yaml"
    return Place(out, store.below(at), at=at)


def store_of(params: Params, name: str) -> Store | None:
    """The store of a source: that of the remote it names, so that private text is never put beside public."""
    return stores_by_remote(params).get(params.sources[name].remote) if name in params.sources else None


def stores_by_remote(params: Params) -> dict[str, Store]:
    """A folder is one of the checkout's, also where an experiment runs in a copy of it."""
    return {
        remote: Store(url if "://" in url else str(project_root() / url))
        for remote, url in params.runtime.stores.items()
        if url is not None
    }


def open_documents(params: Params, source: str, *, ranks: Ranks = ALONE) -> TokenStore:
    """The training documents of a source, by number."""
    path = layout.MANIFESTS / f"{source}.json"
    with described_by(path):
        return TokenStore(source, read_meta(path), places=token_places(params), ranks=ranks)


def token_places(params: Params) -> Places:
    """Where the token files of all sources lie."""
    stores = {name: store for name in params.sources if (store := store_of(params, name)) is not None}
    return Places(beside=layout.TOKENS, stores=stores, copies=project_root() / layout.FETCHED)
