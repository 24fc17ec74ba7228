"""Locations of parts, token files and models; and the engine that processes parts."""

import hashlib
import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_gpt.cache.windows import Places, TokenStore
from niels_gpt.files.checks import Damaged, described_by, read_meta
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import Engine, LocalEngine, RayEngine
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.stage import Stage, project_root

if TYPE_CHECKING:
    from niels_gpt.data.corpus.parts import Texts
    from niels_gpt.data.corpus.split_files import Splits
    from niels_gpt.model.gpt import GPT
    from niels_gpt.trace.library import Library


def open_engine(params: Params) -> Engine:
    """Return the engine that processes parts: local processes, or a Ray cluster."""
    runtime = params.runtime
    if runtime.engine == "ray":
        return RayEngine(address=runtime.ray_address, workers=runtime.workers)
    return LocalEngine(workers=runtime.workers or os.cpu_count() or 1)


def check_model(folder: str) -> None:
    """Raise a ValueError if a folder has no model, and no pipeline is here that would make one."""
    if (Path(folder) / layout.CONFIG).is_file():
        return
    if Path(os.path.relpath(folder)) not in layout.MODEL_OF.values():
        patterns = (f"{layout.MODELS}/*/{layout.CONFIG}", "*/model.safetensors")  # trained, exported
        if known := ", ".join(str(path.parent) for pattern in patterns for path in sorted(Path().glob(pattern))):
            raise ValueError(f"{folder} holds no model; these do: {known}")
    elif not any(path.exists() for path in (layout.DAG, layout.LOCK, layout.MODELS, layout.PARAMS)):
        raise ValueError(
            "there is no dvc.yaml here: run this in the project's folder, or name a model with --model FOLDER"
        )


def open_model(file: Path, device: str) -> "GPT":
    """Load a model, and check that it fits the tokenizer and the context of the pretrained one.

    A base takes more context than training uses: it gets that of the pretrained model.
    """
    from niels_gpt.checkpoint import load_model
    from niels_gpt.tokenizer import load_tokenizer

    T, V = read_meta(layout.PRETRAINED / layout.CONFIG)["T"], load_tokenizer(layout.TOKENIZER).vocab_size
    model = load_model(file, device, T=T if file.parent == layout.BASE else None)
    for what, own, expected in (("vocabulary", model.cfg.V, V), ("context", model.cfg.T, T)):
        if own != expected:
            raise Damaged(file, f"has a {what} of {own}, and this run has {expected}: it is of another run")
    return model


# The parts of a source are in the stage's output, which DVC caches and pushes, or in a store of the user's.
#
# A stored source is too large for DVC to hash and copy. Its parts are in a store, under a fingerprint of everything
# that determines their bytes, and DVC tracks only the manifest that names them.


@dataclass(frozen=True)
class Place:
    """Location of the parts of a source that a stage writes: its output `out`, or `at` in a store."""

    out: Path
    store: Store
    at: str | None

    def __str__(self) -> str:
        return str(self.out) if self.at is None else f"{self.store.root} (which `dvc push` does not carry)"

    def finish(self, files: Collection[str]) -> None:
        """Remove all other files and the records of finished parts from an output; leave a store as it is.

        An output is published as a whole and needs no records. Which surplus parts were started before a token budget
        was reached depends on the number of workers, on which no output may depend.
        """
        if self.at is None:
            for file in self.store.files():
                if file not in files:
                    self.store.remove(file)
            self.store.remove("done")


def place_of(stage: Stage, out: Path, what: str, *made_of: Any, stored: bool) -> Place:
    """Return where to write one type of file (`what`) of the stage's source: to its output, or to a store.

    In a store, the path has a fingerprint of `made_of` and of the stage's code.
    """
    if not stored:
        return Place(out, Store(str(stage.out(out))), at=None)
    code = [digest for dep, digest in sorted(stage.inputs.deps.items()) if Path(dep).is_relative_to(layout.CODE)]
    fingerprint = hashlib.sha256(json.dumps([*made_of, code], sort_keys=True).encode()).hexdigest()[:32]
    at = f"{what}/{stage.key}/{fingerprint}"
    store = store_of(stage.params, stage.key)
    assert store is not None, "a rule of params.yaml"
    return Place(out, store.below(at), at=at)


def store_of(params: Params, name: str) -> Store | None:
    """Return the store of a source's remote, so that private text is never stored with public; None if it has none."""
    return stores_by_remote(params).get(params.sources[name].remote)


def stores_by_remote(params: Params) -> dict[str, Store]:
    """Return the stores by remote; folders are relative to the checkout, even in a copy for an experiment."""
    return {
        remote: Store(url if "://" in url else str(project_root() / url))
        for remote, url in params.runtime.stores.items()
        if url is not None
    }


def open_library(params: Params, *, private: bool = True, in_files: bool = True) -> "Library":
    """Return the indexes of all sources, private ones first; without `private`, of public sources only.

    With `in_files`, lines are looked up in the files that the documents come from, where these are there.
    """
    from niels_gpt.trace.index import SourceIndex
    from niels_gpt.trace.library import Library

    return Library(
        [
            SourceIndex(name, layout.INDEX / name, Path(source.input) if in_files else None)
            for name, source in sorted(params.sources.items(), key=lambda named: not named[1].private)
            if (private or not source.private) and (layout.INDEX / name).is_dir()
        ]
    )


def open_source(params: Params, name: str) -> "tuple[Texts, Splits]":
    """Return the rows of a source, and which of them are held out."""
    from niels_gpt.data.corpus.parts import open_texts
    from niels_gpt.data.corpus.split_files import read_split

    texts = open_texts(layout.RAW / name, stored=store_of(params, name))
    return texts, read_split(layout.SPLIT / params.sources[name].use / name, texts)


def open_documents(params: Params, source: str, *, ranks: Ranks = ALONE) -> TokenStore:
    """Return the training documents of a source, by number."""
    path = layout.MANIFESTS / f"{source}.json"
    with described_by(path):
        return TokenStore(source, read_meta(path), places=token_places(params), ranks=ranks)


def token_places(params: Params) -> Places:
    """Return where the token files of all text sources are."""
    stores = {name: store for name in params.texts if (store := store_of(params, name)) is not None}
    return Places(beside=layout.TOKENS / "text", stores=stores, copies=project_root() / layout.FETCHED)
