"""Command line for building all token caches without the pipeline: `python -m niels_gpt.cache.cli build-all`."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
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

_Builder = Callable[[Path], None]
_NAMES = {"fineweb_edu", "roam", "wikitext", "gutenberg", "dolly15k", "oasst1"}

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Build token caches from the datasets."""


@app.command()
def build_all(  # noqa: PLR0917 (typer makes each a flag)
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
    if unknown := sorted(set(only or []) - _NAMES):
        raise typer.BadParameter(f"--only knows {sorted(_NAMES)}, not {unknown}")
    try:
        chosen = keep_tokenizer(tokenizer or cache_dir / "tokenizer", cache_dir / "tokenizer")
    except (ValueError, OSError) as error:
        typer.echo(f"ERROR: {error}", err=True)
        raise typer.Exit(1) from None

    # Nothing is read before a builder asks for it.
    read: dict[str, Any] = {"streaming": streaming, "shuffle": shuffle, "seed": seed}
    pages = fineweb_edu.iter_fineweb_edu(
        path=fineweb_dataset, name=fineweb_config, split=fineweb_split, shuffle_buffer_size=shuffle_buffer, **read
    )
    books = gutenberg.iter_gutenberg(
        dataset_id=gutenberg_dataset, split=gutenberg_split, shuffle_buffer_size=gutenberg_shuffle_buffer, **read
    )
    chats = dolly.iter_dolly_sft(path=dolly_dataset, split=dolly_split, seed=seed, include_system=include_system)
    threads = oasst1.iter_oasst1_sft(
        path=oasst1_dataset, split=oasst1_split, seed=seed, english_only=english_only, max_messages=max_messages
    )
    threads, again = tee(threads)  # consumed in lockstep, so tee buffers one thread at most
    trees = (thread.meta["message_tree_id"] for thread in again)

    def articles(split: str) -> Iterator[str]:
        lines = wikitext.iter_wikitext(path=wikitext_dataset, config=wikitext_config, split=split)
        return (article.text for article in wikitext.iter_articles(lines))

    common: dict[str, Any] = {"tokenizer": chosen, "seed": seed}
    sharded: dict[str, Any] = {**common, "shard_bytes": shard_bytes}

    def build_wikitext(out: Path) -> None:
        texts, label = {split: articles(split) for split in ("train", "val")}, dataset_label(wikitext_dataset)
        build_split_cache(texts, out, source_name=label, source_config=wikitext_config, **{**sharded, "seed": None})

    def build_roam(out: Path) -> None:
        sides = split_roam_paths(list_roam_paths(roam_root), val_frac=roam_val_frac, seed=seed)
        texts = {
            split: (decode_text(read_bytes(path))[0] for path in paths)
            for split, paths in zip(("train", "val"), sides, strict=True)
        }
        build_split_cache(texts, out, source_name="roam", split_rule=f"by file, val_frac {roam_val_frac}", **sharded)

    def pretrain(
        samples: Iterator[PretrainSample], dataset: str, train: int, val: int, config: str | None = None
    ) -> _Builder:
        texts = (sample.text for sample in samples)
        stream = {**sharded, "streaming": streaming, "shuffle_buffer": None}  # the samples are shuffled
        facts: dict[str, Any] = {"source_name": dataset_label(dataset), "source_config": config}
        return partial(build_pretrain_cache, texts, max_train_tokens=train, max_val_tokens=val, **stream, **facts)

    def sft(samples: Iterator[ChatSample], dataset: str, groups: Iterator[str] | None = None) -> _Builder:
        messages = ([vars(message) for message in sample.messages] for sample in samples)
        options: dict[str, Any] = {**common, "val_frac": sft_val_frac, "T": sft_context, "groups": groups}
        return partial(build_sft_cache, messages, source_name=dataset_label(dataset), **options)

    builders: dict[str, _Builder] = {
        "pretrain/fineweb_edu": pretrain(pages, fineweb_dataset, max_train_tokens, max_val_tokens, fineweb_config),
        "pretrain/roam": build_roam,
        "pretrain/wikitext": build_wikitext,
        "pretrain/gutenberg": pretrain(books, gutenberg_dataset, gutenberg_train_tokens, gutenberg_val_tokens),
        "sft/dolly15k": sft(chats, dolly_dataset),
        "sft/oasst1": sft(threads, oasst1_dataset, groups=trees),
    }
    failed = []
    for name, build in builders.items():
        if only and Path(name).name not in only:
            continue
        try:
            build(cache_dir / name)
            typer.echo(f"{name}: built")
        except (ValueError, OSError, RuntimeError) as error:
            if name == "pretrain/gutenberg" and isinstance(error, HubError):
                write_unbuilt_cache(cache_dir / name, source_name=dataset_label(gutenberg_dataset), **sharded)
                typer.echo(f"{name}: not built: {error}", err=True)
            else:
                failed.append(name)
                typer.echo(f"{name}: FAILED: {error}", err=True)
    if failed:
        typer.echo(f"ERROR: {len(failed)} caches were not built: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    sys.exit(app())
