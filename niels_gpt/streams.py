"""Byte streams of the three v0 sources (wiki, roam, primer) with a disk cache, for use as a library.

The pipeline does not use this module; hashes decide there what it rebuilds. Here the .meta.json next to each .bin does,
by document count, size and modification time.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from niels_gpt.batching import BytesSources
from niels_gpt.config import ModelConfig
from niels_gpt.data.hub import HubError
from niels_gpt.data.primer import DIALOGUE_DELIM, load_primer_text, split_primer_dialogues
from niels_gpt.data.roam import list_roam_paths, load_texts, split_roam_paths
from niels_gpt.data.wikitext import load_wikitext
from niels_gpt.files.atomic import atomic_path, write_json

SEPARATOR = "\n\n"
ALL_SOURCES = ("wiki", "roam", "primer")


@dataclass(frozen=True)
class StreamBuildConfig:
    """Inputs, cache folder and split settings of `build_sources`."""

    roam_root: str = ".roam-data/"
    primer_path: str = "data/primer.txt"
    cache_dir: str = "data/cache/streams"
    doc_separator: str = SEPARATOR
    roam_val_frac: float = 0.10
    primer_val_frac: float = 0.10
    seed: int = 42
    delimiter: str = DIALOGUE_DELIM
    force_rebuild: bool = False
    enabled_sources: tuple[str, ...] = ALL_SOURCES
    required_sources: tuple[str, ...] = ALL_SOURCES
    allow_missing_sources: bool = False


# A split, a description of its input, and what builds its bytes if the cache has no entry with that description.
_Split = tuple[str, dict[str, Any], Callable[[], bytes]]


def build_wiki_stream(docs: list[str], *, sep: str) -> bytes:
    """Return the documents joined with `sep`, in UTF-8."""
    return sep.join(docs).encode("utf-8")


def build_primer_stream(text: str) -> bytes:
    """Return the text unchanged, in UTF-8."""
    return text.encode("utf-8")


def build_wiki_streams(docs_train: list[str], docs_val: list[str]) -> tuple[bytes, bytes]:
    """Return the (train, val) streams with the default separator."""
    return build_wiki_stream(docs_train, sep=SEPARATOR), build_wiki_stream(docs_val, sep=SEPARATOR)


# Documents of both sources are joined alike.
build_roam_stream, build_roam_streams = build_wiki_stream, build_wiki_streams


def build_primer_streams(text_train: str, text_val: str) -> tuple[bytes, bytes]:
    """Return the (train, val) streams."""
    return build_primer_stream(text_train), build_primer_stream(text_val)


def build_sources(cfg: StreamBuildConfig, *, T: int | None = None) -> tuple[BytesSources, BytesSources]:
    """Return the (train, val) byte streams of the enabled sources, from the cache if it matches the inputs.

    A missing source raises a RuntimeError, unless it is not required and `allow_missing_sources` is set. Each stream
    needs at least T+1 bytes (default T: the v0 model's).
    """
    unknown = sorted(set(cfg.enabled_sources) - set(ALL_SOURCES))
    if unknown:
        raise ValueError(f"unknown sources {unknown}; known: {list(ALL_SOURCES)}")
    if not set(cfg.required_sources) <= set(cfg.enabled_sources):
        raise ValueError(
            f"required_sources {list(cfg.required_sources)} must be a subset of enabled_sources "
            f"{list(cfg.enabled_sources)}"
        )
    describe = {"wiki": _describe_wiki, "roam": _describe_roam, "primer": _describe_primer}
    built: dict[str, BytesSources] = {"train": {}, "val": {}}
    for name in cfg.enabled_sources:
        try:
            splits = list(describe[name](cfg))
        except (OSError, HubError) as error:  # a local file is missing, or a download failed
            required = name in cfg.required_sources
            if cfg.allow_missing_sources and not required:
                continue
            lists = "required_sources and enabled_sources" if required else "enabled_sources"
            raise RuntimeError(
                f"{'required ' * required}source {name!r} is missing: {error}; add it, or take it out of {lists}"
            ) from error
        for split, meta, build in splits:
            built[split][name] = _cached(cfg, f"{name}_{split}", {**meta, "source": name, "split": split}, build)
    T = ModelConfig().T if T is None else T
    short = {
        f"{name}/{split}": len(data)
        for split, sources in built.items()
        for name, data in sources.items()
        if len(data) < T + 1
    }
    if short:
        raise ValueError(f"too short for T={T} (each needs T+1 = {T + 1} bytes): {short}")
    return built["train"], built["val"]


def _describe_wiki(cfg: StreamBuildConfig) -> Iterator[_Split]:
    every = load_wikitext()
    for split in ("train", "val"):
        docs = every[split]
        meta = {"n_docs": len(docs), "total_chars": sum(map(len, docs)), "sep": cfg.doc_separator}
        yield split, meta, partial(build_wiki_stream, docs, sep=cfg.doc_separator)


def _describe_roam(cfg: StreamBuildConfig) -> Iterator[_Split]:
    paths = list_roam_paths(cfg.roam_root)
    if not paths:
        raise FileNotFoundError(f"no *.md file under {cfg.roam_root}")
    train, val = split_roam_paths(paths, val_frac=cfg.roam_val_frac, seed=cfg.seed)
    if not val:
        raise RuntimeError(f"roam has no validation set: {len(paths)} note under {cfg.roam_root}, two are needed")
    how = {"sep": cfg.doc_separator, "seed": cfg.seed, "val_frac": cfg.roam_val_frac}
    for split, chosen in (("train", train), ("val", val)):
        yield split, {"files": list(map(_file_stamp, chosen)), **how}, partial(_read_roam, chosen, cfg.doc_separator)


def _read_roam(paths: list[str], sep: str) -> bytes:
    return build_roam_stream(load_texts(paths), sep=sep)


def _describe_primer(cfg: StreamBuildConfig) -> Iterator[_Split]:
    text = load_primer_text(cfg.primer_path)
    how: dict[str, Any] = {"seed": cfg.seed, "val_frac": cfg.primer_val_frac}
    train, val = split_primer_dialogues(text, delimiter=cfg.delimiter, **how)
    for split, chosen in (("train", train), ("val", val)):
        meta = {**_file_stamp(cfg.primer_path), "delimiter": cfg.delimiter, **how}
        yield split, meta, partial(build_primer_stream, chosen)


def _file_stamp(path: str) -> dict[str, Any]:
    status = os.stat(path)
    return {"path": path, "mtime_ns": status.st_mtime_ns, "size": status.st_size}


def _cached(cfg: StreamBuildConfig, name: str, meta: dict[str, Any], build: Callable[[], bytes]) -> bytes:
    """Return the stream's bytes from the cache, building and storing them if its description differs."""
    folder = Path(cfg.cache_dir)
    bin_path, meta_path = folder / f"{name}.bin", folder / f"{name}.meta.json"
    if not cfg.force_rebuild and bin_path.is_file() and meta_path.is_file():
        data = bin_path.read_bytes()
        with suppress(ValueError):  # damaged: rebuild
            if json.loads(meta_path.read_text(encoding="utf-8")) == {**meta, "bytes": len(data)}:
                return data
    data = build()
    # Delete the old description first: a crash between the two writes must not leave it next to new bytes.
    meta_path.unlink(missing_ok=True)
    with atomic_path(bin_path) as temporary:
        temporary.write_bytes(data)
    write_json(meta_path, {**meta, "bytes": len(data)})
    return data
