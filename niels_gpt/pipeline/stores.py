"""Locations of parts, token files and models; and the engine that processes parts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_gpt.cache.windows import Places, TokenStore
from niels_gpt.files.checks import Damaged, described_by, read_meta
from niels_gpt.files.ranks import ALONE, Ranks
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import Engine, LocalEngine, RayEngine
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params, Runtime
from niels_gpt.pipeline.stage import Stage, project_root

if TYPE_CHECKING:
    from niels_gpt.model.gpt import GPT
    from niels_gpt.trace.library import Library


def open_engine(runtime: Runtime) -> Engine:
    """Return the engine that processes parts: local processes, or a Ray cluster."""
    if runtime.engine == "ray":
        return RayEngine(address=runtime.ray_address, workers=runtime.workers)
    return LocalEngine(workers=runtime.workers or os.cpu_count() or 1)


def model_folders() -> list[str]:
    """Return the model folders in models/, and the exports in the working folder."""
    trained = sorted(layout.MODELS.glob(f"*/{layout.CONFIG}"))
    exported = (path for path in sorted(Path().glob(f"*/{layout.CONFIG}")) if (path.parent / _WEIGHTS).is_file())
    return [str(path.parent) for path in (*trained, *exported)]


def check_model(folder: str) -> None:
    """Raise a ValueError if a folder has no model, and no pipeline is here that would make one."""
    planned = Path(os.path.relpath(folder)) in layout.MODEL_OF.values()
    if (Path(folder) / layout.CONFIG).is_file():
        return
    if planned and not any(path.exists() for path in (layout.DAG, layout.LOCK, layout.MODELS, layout.PARAMS)):
        raise ValueError(
            "there is no dvc.yaml here: run this in the project's folder, or name a model with --model FOLDER"
        )
    if not planned and (known := model_folders()):
        raise ValueError(f"{folder} holds no model; these do: {', '.join(known)}")


def open_models(files: Mapping[str, Path], device: str, *, V: int, dropout: float | None = None) -> dict[str, GPT]:
    """Load models by name, and check that they belong together.

    Their vocabulary must have `V` entries, and all must have the shape of the first, which further training keeps.
    """
    from niels_gpt.checkpoint import load_model

    models: dict[str, GPT] = {}
    for name, file in files.items():
        # A base takes more context than training uses: scores are compared at the same.
        based = file.parent == layout.BASE
        T = read_meta(layout.PRETRAINED / layout.CONFIG, required=["T"])["T"] if based else None
        model = models[name] = load_model(file, device, dropout=dropout, T=T)
        if model.cfg.V != V:
            raise Damaged(
                file,
                f"is a model of {model.cfg.V} tokens, and {layout.TOKENIZER} a tokenizer of {V}: they do not belong "
                "together",
            )
        first, own = (asdict(each.cfg) for each in (next(iter(models.values())), model))
        other = [key for key in own if own[key] != first[key] and key != "dropout"]
        if other:
            own_values, first_values = (", ".join(f"{key}={of[key]}" for key in other) for of in (own, first))
            raise Damaged(
                file,
                f"is a model with {own_values}, and {next(iter(files.values()))} has {first_values}: one is foreign",
            )
    return models


_WEIGHTS = "model.safetensors"  # in an export


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


def open_library(params: Params, *, private: bool = True, in_files: bool = True) -> Library:
    """Return the indexes of all sources, private ones first; without `private`, of public sources only.

    With `in_files`, lines are looked up in the files that the documents come from, where these are there.
    """
    from niels_gpt.trace.index import SourceIndex
    from niels_gpt.trace.library import Library

    sources = sorted(params.sources.items(), key=lambda named: not named[1].private)
    names = [
        (name, source) for name, source in sources if (private or not source.private) and (layout.INDEX / name).is_dir()
    ]
    inputs = {name: Path(source.input) if in_files else None for name, source in names}
    return Library([SourceIndex(name, layout.INDEX / name, input) for name, input in inputs.items()])


def open_documents(params: Params, source: str, *, ranks: Ranks = ALONE) -> TokenStore:
    """Return the training documents of a source, by number."""
    path = layout.MANIFESTS / f"{source}.json"
    with described_by(path):
        return TokenStore(source, read_meta(path), places=token_places(params), ranks=ranks)


def token_places(params: Params) -> Places:
    """Return where the token files of all text sources are."""
    stores = {name: store for name in params.texts if (store := store_of(params, name)) is not None}
    return Places(beside=layout.TOKENS / "text", stores=stores, copies=project_root() / layout.FETCHED)
