"""mix: the join. DVC cannot take a list of dependencies, so two small files name every token file of every source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from niels_gpt.cache.meta import read_meta
from niels_gpt.files.atomic import write_json
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import AnySource
from niels_gpt.pipeline.stage import Stage, run_stage

# What must be the same for all sources of a mix.
SHARED = ("tokenizer_sha256", "vocab_size", "special_token_ids", "token_dtype")


def join(manifests: Path, sources: Mapping[str, AnySource], *, required: Sequence[str]) -> dict[str, Any]:
    """The sources' manifests as one, with what they share said once."""
    required = ["tokenizer_sha256", "vocab_size", *required]
    joined = {name: read_meta(manifests / f"{name}.json", required=required) for name in sorted(sources)}
    shared = [{key: manifest.pop(key) for key in SHARED if key in manifest} for manifest in joined.values()]
    _check_tokenizers(dict(zip(joined, shared, strict=True)))
    return {
        **shared[0],
        "sources": {name: {"val_name": sources[name].val_name, **manifest} for name, manifest in joined.items()},
    }


def _check_tokenizers(shared: Mapping[str, Mapping[str, Any]]) -> None:
    """Ids of one tokenizer mean nothing to another: raise, naming the manifests that differ from the first."""
    first, *others = shared
    differing = [name for name in others if shared[name] != shared[first]]
    if differing:
        raise ValueError(
            f"{', '.join(differing)} and {first} were encoded by different tokenizers: run `dvc repro` for all of them"
        )


def main(stage: Stage) -> None:
    texts = join(layout.MANIFESTS, stage.params.sources, required=["train.tokens", "train.shards", "val.shards"])
    chats = join(layout.CHAT_MANIFESTS, stage.params.chats, required=["special_token_ids", "folder", "files"])
    identity = ("tokenizer_sha256", "vocab_size")
    _check_tokenizers({name: {key: mix[key] for key in identity} for name, mix in (("texts", texts), ("chats", chats))})
    write_json(stage.out(layout.MIX), texts)
    write_json(stage.out(layout.CHAT_MIX), chats)
    total = sum(source["train"]["tokens"] for source in texts["sources"].values())
    stage.say(
        f"{len(stage.params.sources)} sources with {total:,} train tokens and {len(stage.params.chats)} of chats, "
        f"V={texts['vocab_size']:,} -> {layout.MIX}, {layout.CHAT_MIX}"
    )


if __name__ == "__main__":
    run_stage("mix", main)
