"""Command `niels-gpt inspect bases`: pretrained models that training can start from, and which are here."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from niels_gpt.cli.console import one_sentence
from niels_gpt.files.checks import read_meta
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.sources import BUNDLED

_HEAD = ("from", "model", "size", "licence", "here")
_AT_THE_HUB = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": ("135 M parameters, answers chats", "apache-2.0"),
    "Qwen/Qwen3-0.6B-Base": ("0.6 B parameters", "apache-2.0"),
}


def inspect_bases() -> None:
    """List pretrained models to start from: what to write as base.from in params.yaml, size, licence, what is here."""
    with one_sentence():
        rows = [_HEAD, *_rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        typer.echo("\nA hub id needs base.revision, a full commit sha. A folder or file is written as base.input, too.")
        if (file := layout.BASE / "origin.json").is_file():
            origin = read_meta(file, required=["from", "family", "parameters", "licence"])
            what = f"{origin['family']}, {origin['parameters']:,} parameters, {origin['licence']}"
            typer.echo(f"{layout.BASE} holds {origin['from']}: {what}")


def _rows() -> Iterator[tuple[str, ...]]:
    from niels_gpt.base.importing import BUNDLED_BYTES, INSTALL, bundled_file

    try:
        here = "installed" if bundled_file() else ""
    except ValueError:
        here = f"no: {INSTALL}"
    yield BUNDLED, "SmolLM2-135M-Instruct in 4 bits, answers chats", _megabytes(BUNDLED_BYTES), "apache-2.0", here
    cached = _cached_models()
    for name in (*_AT_THE_HUB, *(name for name in cached if name not in _AT_THE_HUB)):
        what, licence = _AT_THE_HUB.get(name, ("", ""))
        size, here = cached.get(name, ("", "no: the import fetches it"))
        yield name, what, size, licence, here
    yield "FOLDER", "Llama or Qwen3 in transformers' form, with safetensors", "", "", ""
    yield "FILE.gguf", "Llama or Qwen3 as llama.cpp reads it", "", "", ""


def _cached_models() -> dict[str, tuple[str, str]]:
    """Return size and commits of the models in the hub's local cache that have safetensors."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = sorted(scan_cache_dir().repos, key=lambda repo: repo.repo_id)
    except CacheNotFound:
        return {}
    found = {}
    for repo in repos:
        usable = [r for r in repo.revisions if any(file.file_name.endswith(".safetensors") for file in r.files)]
        if repo.repo_type == "model" and usable:
            commits = ", ".join(sorted(revision.commit_hash for revision in usable))
            found[repo.repo_id] = _megabytes(repo.size_on_disk), f"cached, revision {commits}"
    return found


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
