"""python -m niels_gpt.cache.cli build-all: every cache of the token-cache seed, without the DAG."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache, build_split_cache
from niels_gpt.data.dolly import iter_dolly_sft
from niels_gpt.data.fineweb_edu import iter_fineweb_edu
from niels_gpt.data.gutenberg import iter_gutenberg
from niels_gpt.data.oasst1 import iter_oasst1_sft
from niels_gpt.data.roam import list_roam_paths, load_texts, split_roam_paths
from niels_gpt.data.types import ChatSample
from niels_gpt.data.wikitext import iter_articles, iter_wikitext
from niels_gpt.tokenizer import load_tokenizer

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Token caches, built from the datasets themselves."""


@app.command()
def build_all(  # noqa: PLR0917 (typer makes each a flag)
    cache_dir: Annotated[Path, typer.Option(help="where the caches go")] = Path("cache"),
    seed: int = 42,
    tokenizer: Annotated[Path, typer.Option(help="a tokenizer's folder or file")] = Path("cache/tokenizer"),
    fineweb_dataset: str = "HuggingFaceFW/fineweb-edu",
    fineweb_config: str = "CC-MAIN-2024-10",
    wikitext_dataset: str = "Salesforce/wikitext",
    wikitext_config: str = "wikitext-103-raw-v1",
    gutenberg_dataset: str = "nikolina-p/gutenberg_clean_en_splits",
    dolly_dataset: str = "databricks/databricks-dolly-15k",
    oasst1_dataset: str = "OpenAssistant/oasst1",
    roam_root: str = ".roam-data",
    roam_val_frac: float = 0.1,
    max_train_tokens: int = 200_000_000,
    max_val_tokens: int = 5_000_000,
    gutenberg_train_tokens: int = 50_000_000,
    gutenberg_val_tokens: int = 1_000_000,
    shard_bytes: int = 128 * 1024 * 1024,
    shuffle_buffer: int = 10_000,
    sft_val_frac: float = 0.1,
    only: Annotated[list[str] | None, typer.Option(help="build just these")] = None,
) -> None:
    """Build every cache; a dataset that fails is named at the end, and the others are built all the same."""
    chosen = load_tokenizer(tokenizer)

    def fineweb_edu(out: Path) -> None:
        pages = iter_fineweb_edu(
            path=fineweb_dataset, name=fineweb_config, seed=seed, shuffle_buffer_size=shuffle_buffer
        )
        build_pretrain_cache(
            (page.text for page in pages),
            out,
            tokenizer=chosen,
            max_train_tokens=max_train_tokens,
            max_val_tokens=max_val_tokens,
            shard_bytes=shard_bytes,
            seed=seed,
            shuffle_buffer=None,  # the stream is shuffled already
            source_name=fineweb_dataset,
            source_config=fineweb_config,
            streaming=True,
        )

    def gutenberg(out: Path) -> None:
        books = iter_gutenberg(dataset_id=gutenberg_dataset, seed=seed, shuffle_buffer_size=shuffle_buffer)
        build_pretrain_cache(
            (book.text for book in books),
            out,
            tokenizer=chosen,
            max_train_tokens=gutenberg_train_tokens,
            max_val_tokens=gutenberg_val_tokens,
            shard_bytes=shard_bytes,
            seed=seed,
            shuffle_buffer=None,
            source_name=gutenberg_dataset,
            streaming=True,
        )

    def wikitext(out: Path) -> None:
        def texts(split: str) -> Iterator[str]:
            lines = iter_wikitext(path=wikitext_dataset, config=wikitext_config, split=split)
            return (article.text for article in iter_articles(lines))

        build_split_cache(
            {split: texts(split) for split in ("train", "val")},
            out,
            tokenizer=chosen,
            shard_bytes=shard_bytes,
            seed=None,
            source_name=wikitext_dataset,
            source_config=wikitext_config,
        )

    def roam(out: Path) -> None:
        train, val = split_roam_paths(list_roam_paths(roam_root), val_frac=roam_val_frac, seed=seed)
        build_split_cache(
            {"train": load_texts(train), "val": load_texts(val)},
            out,
            tokenizer=chosen,
            shard_bytes=shard_bytes,
            seed=seed,
            source_name="roam",
            split_rule=f"by file, val_frac {roam_val_frac}",
        )

    def sft(name: str, chats: list[ChatSample], out: Path, *, by_tree: bool) -> None:
        build_sft_cache(
            [[vars(message) for message in chat.messages] for chat in chats],
            out,
            tokenizer=chosen,
            val_frac=sft_val_frac,
            seed=seed,
            source_name=name,
            groups=[chat.meta["message_tree_id"] for chat in chats] if by_tree else None,
        )

    builders: dict[str, Callable[[Path], None]] = {
        "pretrain/fineweb_edu": fineweb_edu,
        "pretrain/roam": roam,
        "pretrain/wikitext": wikitext,
        "pretrain/gutenberg": gutenberg,
        "sft/dolly15k": lambda out: sft(
            dolly_dataset, list(iter_dolly_sft(path=dolly_dataset, seed=seed)), out, by_tree=False
        ),
        "sft/oasst1": lambda out: sft(
            oasst1_dataset, list(iter_oasst1_sft(path=oasst1_dataset, seed=seed)), out, by_tree=True
        ),
    }
    unknown = sorted(set(only or []) - {name.split("/")[1] for name in builders})
    if unknown:
        raise typer.BadParameter(f"--only knows {sorted(name.split('/')[1] for name in builders)}, not {unknown}")
    failed = []
    for name, build in builders.items():
        if only and name.split("/")[1] not in only:
            continue
        try:
            build(cache_dir / name)
            typer.echo(f"{name}: built")
        except (ValueError, OSError, RuntimeError) as error:
            failed.append(name)
            typer.echo(f"{name}: FAILED: {error}", err=True)
    if failed:
        typer.echo(f"ERROR: {len(failed)} caches were not built: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    sys.exit(app())
