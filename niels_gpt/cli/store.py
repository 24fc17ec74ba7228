"""niels-gpt store: files that DVC does not manage. Verify and prune stores; delete the checkpoints of finished runs."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, NamedTuple

import typer

from niels_gpt.cache.windows import listed_files
from niels_gpt.data.corpus.parts import MANIFEST, open_texts
from niels_gpt.files.checks import file_problem, read_meta
from niels_gpt.files.store import Store
from niels_gpt.jobs.engine import Worker
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params, read_params
from niels_gpt.pipeline.repository import DvcCache
from niels_gpt.pipeline.stores import open_engine, store_of, stores_by_remote, token_places


class StoredFile(NamedTuple):
    """File listed by a manifest of this checkout; `stage` is the DVC stage that makes it."""

    store: Store
    file: str
    bytes: int
    sha256: str
    stage: str

    @property
    def name(self) -> str:
        return self.store.place(self.file)


def check_file(item: StoredFile, _: Worker) -> str | None:
    """Return "missing" or "changed" if a file is not as its manifest lists it, else None."""
    try:
        with item.store.reading(item.file) as path:
            return file_problem(path, size=item.bytes, sha256=item.sha256)
    except FileNotFoundError:  # in a bucket
        return "missing"


def store(
    prune: Annotated[bool, typer.Option("--prune", help="list files that no manifest names instead")] = False,
    delete: Annotated[bool, typer.Option("--delete", "--remove", help="delete the damaged or listed files")] = False,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="delete checkpoints of finished runs")] = False,
    all_runs: Annotated[bool, typer.Option("--all", help="with --checkpoints: also of runs that could resume")] = False,
) -> None:
    """Verify the text and token files of large sources, which are kept in stores that DVC does not manage.

    Each file that a manifest of this checkout lists is read and its SHA-256 compared. --prune sees the manifests of
    this checkout and those in its DVC cache, but not those of other checkouts that use the same store. --checkpoints
    frees what runs were resumed from: their models are in models/ and in DVC's cache.
    """
    if checkpoints:
        from niels_gpt.train.state import delete_runs

        count, size = delete_runs(layout.CHECKPOINTS, unfinished=all_runs)
        typer.echo(f"{count} runs deleted, {size / 2**20:.1f} MiB freed")
    elif prune:
        _prune(delete=delete)
    else:
        _verify(delete=delete)


def _verify(*, delete: bool) -> None:
    params = read_params()[0]
    items = list(_listed(params))
    found = open_engine(params).map(check_file, items, tick=bool)
    bad = {item: fault for item, fault in found if fault}
    if not bad:
        typer.echo(f"{len(items):,} files match their manifests")
        return
    for item in sorted(bad, key=lambda item: item.name):
        typer.echo(f"{item.name}: {bad[item]}")
        if delete:
            item.store.remove(item.file)
    stages = " && ".join(f"dvc repro --force --single-item {stage}" for stage in sorted({item.stage for item in bad}))
    first = "" if delete else "`niels-gpt store --delete`, then "
    raise ValueError(f"{len(bad):,} of {len(items):,} files are damaged; {first}`{stages}` makes them again")


def _prune(*, delete: bool) -> None:
    needed, total = set(_named()), 0
    for kept in (*stores_by_remote(read_params()[0]).values(), Store(str(layout.FETCHED))):
        sizes = Counter[str]()  # of folders: what/source/fingerprint
        for file, size in kept.files().items():
            sizes["/".join(file.split("/")[:3])] += size
        for at, size in sorted(sizes.items()):
            if at not in needed:
                typer.echo(f"{kept.place(at)}  {size / 2**20:,.1f} MiB")
                total += size
                if delete:
                    kept.below(at).remove()
    done = "freed" if delete else "not needed by this checkout; `niels-gpt store --prune --delete` frees them"
    typer.echo(f"{total / 2**20:,.1f} MiB {done}")


def _listed(params: Params) -> Iterator[StoredFile]:
    places = token_places(params)
    for name in params.texts:
        if (layout.RAW / name / MANIFEST).is_file():
            texts = open_texts(layout.RAW / name, stored=store_of(params, name))
            for part in texts.parts:
                yield StoredFile(texts.store, part.file, part.bytes, part.sha256, f"load@{name}")
        if (path := layout.MANIFESTS / f"{name}.json").is_file():
            for file in listed_files({name: read_meta(path)}, places, documents=True):
                yield StoredFile(file.store, file.file, file.bytes, file.sha256, f"tokenize@{name}")


def _named() -> Iterator[str]:
    """Yield the store folders named by manifests in this checkout, and by those in DVC's cache."""
    kept = (path for path in DvcCache().files.glob("??/*") if path.suffix != ".dir")
    for path in (*layout.RAW.glob(f"*/{MANIFEST}"), *layout.MANIFESTS.glob("*.json"), *kept):
        # Larger files in DVC's cache are no manifests.
        if path.is_file() and path.stat().st_size < 64 << 20 and path.read_bytes()[:1] == b"{":
            with suppress(ValueError):
                if isinstance(at := json.loads(path.read_bytes()).get("at"), str):
                    yield at
