"""Command line for building all token caches without the pipeline: `python -m niels_gpt.cache.cli build-all`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import tee
from pathlib import Path
from typing import Annotated, Any

import typer

from niels_gpt.cache.build_cache import (
    build_pretrain_cache,
    build_sft_cache,
    build_split_cache,
    keep_tokenizer,
    write_unbuilt_cache,
)
from niels_gpt.cache.meta import dataset_label
from niels_gpt.data import dolly, fineweb_edu, gutenberg, oasst1, wikitext
from niels_gpt.data.hub import HubError
from niels_gpt.data.readers.files import decode_text, read_bytes
from niels_gpt.data.roam import list_roam_paths, split_roam_paths
from niels_gpt.data.types import ChatSample, PretrainSample

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Build token caches from the datasets."""


@app.command()
def build_all(  # noqa: PLR0915, PLR0917 (typer makes each a flag)
    cache_dir: Annotated[Path, typer.Option(help="where the caches go")] = Path("cache"),
    seed: int = 42,
    tokenizer: Annotated[
        Path | None, typer.Option(help="a tokenizer's folder or file [default: tokenizer/ in the cache folder]")
    ] = None,
    fineweb_dataset: str = fineweb_edu.DATASET,
    fineweb_config: str = "CC-MAIN-2024-10",
    fineweb_split: str = "train",
    wikitext_dataset: str = "Salesforce/wikitext",
    wikitext_config: str = wikitext.CONFIG,
    gutenberg_dataset: str = gutenberg.DATASET,
    gutenberg_split: str = "train",
    dolly_dataset: str = dolly.DATASET,
    dolly_split: str = "train",
    include_system: Annotated[bool, typer.Option(help="dolly15k: a system message before each chat")] = False,
    oasst1_dataset: str = oasst1.DATASET,
    oasst1_split: str = "train",
    english_only: Annotated[bool, typer.Option(help="oasst1: leave other languages out")] = True,
    max_messages: Annotated[int, typer.Option(min=2, help="oasst1: cut longer threads")] = 32,
    roam_root: str = ".roam-data",
    roam_val_frac: float = 0.1,
    max_train_tokens: Annotated[int, typer.Option(help="of fineweb-edu")] = 200_000_000,
    max_val_tokens: Annotated[int, typer.Option(help="of fineweb-edu")] = 5_000_000,
    gutenberg_train_tokens: int = 50_000_000,
    gutenberg_val_tokens: int = 1_000_000,
    shard_bytes: Annotated[int, typer.Option(min=2)] = 128 * 1024 * 1024,
    streaming: Annotated[bool, typer.Option(help="fineweb-edu and gutenberg: read without a full download")] = True,
    shuffle: Annotated[bool, typer.Option(help="fineweb-edu and gutenberg: in a seeded order")] = True,
    shuffle_buffer: Annotated[int, typer.Option(min=1, help="pages of fineweb-edu")] = 10_000,
    gutenberg_shuffle_buffer: Annotated[int, typer.Option(min=1, help="books, 400 KB each")] = 100,
    sft_val_frac: float = 0.1,
    sft_context: Annotated[
        int | None, typer.Option(min=1, help="skip chats without an answer within this many tokens")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="build just these")] = None,
) -> None:
    """Build every cache; if a dataset fails, build the others and list the failures at the end.

    An unavailable gutenberg is not a failure: its meta.json then has the status "not built".
    """

    def build_fineweb_edu(out: Path) -> None:
        pages = fineweb_edu.iter_fineweb_edu(
            path=fineweb_dataset,
            name=fineweb_config,
            split=fineweb_split,
            shuffle_buffer_size=shuffle_buffer,
            **streamed,
        )
        build_stream(fineweb_dataset, pages, out, max_train_tokens, max_val_tokens, config=fineweb_config)

    def build_gutenberg(out: Path) -> None:
        books = gutenberg.iter_gutenberg(
            dataset_id=gutenberg_dataset,
            split=gutenberg_split,
            shuffle_buffer_size=gutenberg_shuffle_buffer,
            **streamed,
        )
        build_stream(gutenberg_dataset, books, out, gutenberg_train_tokens, gutenberg_val_tokens)

    def build_stream(
        name: str, samples: Iterable[PretrainSample], out: Path, train: int, val: int, *, config: str | None = None
    ) -> None:
        build_pretrain_cache(
            (sample.text for sample in samples),
            out,
            max_train_tokens=train,
            max_val_tokens=val,
            shuffle_buffer=None,  # the samples are shuffled
            source_name=dataset_label(name),
            source_config=config,
            streaming=streaming,
            **common,
        )

    def build_wikitext(out: Path) -> None:
        def texts(split: str) -> Iterator[str]:
            lines = wikitext.iter_wikitext(path=wikitext_dataset, config=wikitext_config, split=split)
            return (article.text for article in wikitext.iter_articles(lines))

        given = {split: texts(split) for split in ("train", "val")}
        label, options = dataset_label(wikitext_dataset), {**common, "seed": None}
        build_split_cache(given, out, source_name=label, source_config=wikitext_config, **options)

    def build_roam(out: Path) -> None:
        train, val = split_roam_paths(list_roam_paths(roam_root), val_frac=roam_val_frac, seed=seed)
        texts = {
            split: (decode_text(read_bytes(path))[0] for path in paths)
            for split, paths in {"train": train, "val": val}.items()
        }
        build_split_cache(texts, out, source_name="roam", split_rule=f"by file, val_frac {roam_val_frac}", **common)

    def build_dolly15k(out: Path) -> None:
        chats = dolly.iter_dolly_sft(path=dolly_dataset, split=dolly_split, seed=seed, include_system=include_system)
        build_sft(dolly_dataset, chats, out, groups=None)

    def build_oasst1(out: Path) -> None:
        threads = oasst1.iter_oasst1_sft(
            path=oasst1_dataset, split=oasst1_split, seed=seed, english_only=english_only, max_messages=max_messages
        )
        threads, again = tee(threads)  # consumed in lockstep, so tee buffers one thread at most
        build_sft(oasst1_dataset, threads, out, groups=(thread.meta["message_tree_id"] for thread in again))

    def build_sft(name: str, chats: Iterable[ChatSample], out: Path, *, groups: Iterable[str] | None) -> None:
        build_sft_cache(
            ([vars(message) for message in chat.messages] for chat in chats),
            out,
            tokenizer=chosen,
            val_frac=sft_val_frac,
            seed=seed,
            source_name=dataset_label(name),
            T=sft_context,
            groups=groups,
        )

    builders = {
        "pretrain/fineweb_edu": build_fineweb_edu,
        "pretrain/roam": build_roam,
        "pretrain/wikitext": build_wikitext,
        "pretrain/gutenberg": build_gutenberg,
        "sft/dolly15k": build_dolly15k,
        "sft/oasst1": build_oasst1,
    }
    known = {Path(name).name for name in builders}
    if unknown := sorted(set(only or []) - known):
        raise typer.BadParameter(f"--only knows {sorted(known)}, not {unknown}")
    try:
        chosen = keep_tokenizer(tokenizer or cache_dir / "tokenizer", cache_dir / "tokenizer")
    except (ValueError, OSError) as error:
        typer.echo(f"ERROR: {error}", err=True)
        raise typer.Exit(1) from None
    common: dict[str, Any] = {"tokenizer": chosen, "shard_bytes": shard_bytes, "seed": seed}
    streamed: dict[str, Any] = {"streaming": streaming, "shuffle": shuffle, "seed": seed}
    failed = []
    for name, build in builders.items():
        if only and Path(name).name not in only:
            continue
        try:
            build(cache_dir / name)
            typer.echo(f"{name}: built")
        except (ValueError, OSError, RuntimeError) as error:
            if build is build_gutenberg and isinstance(error, HubError):
                write_unbuilt_cache(cache_dir / name, source_name=dataset_label(gutenberg_dataset), **common)
                typer.echo(f"{name}: not built: {error}", err=True)
            else:
                failed.append(name)
                typer.echo(f"{name}: FAILED: {error}", err=True)
    if failed:
        typer.echo(f"ERROR: {len(failed)} caches were not built: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    sys.exit(app())
