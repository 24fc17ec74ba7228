"""mix: the join. DVC cannot take a list of dependencies, so two small files name every token file of every source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from niels_gpt.atomic import write_json
from niels_gpt.cache.meta import read_meta
from stages.params import AnySource
from stages.stage import Stage, run_stage

# What must be the same for all sources of a mix.
SHARED = ("tokenizer_sha256", "vocab_size", "special_token_ids", "token_dtype")


def join(manifests: Path, sources: Mapping[str, AnySource]) -> dict[str, Any]:
    """The sources' manifests as one, with what they share said once."""
    joined = {name: read_meta(manifests / f"{name}.json") for name in sorted(sources)}
    shared = [{key: manifest.pop(key) for key in SHARED if key in manifest} for manifest in joined.values()]
    if any(other != shared[0] for other in shared):
        raise ValueError("the sources were encoded by different tokenizers: run `dvc repro` for all of them")
    return {
        **shared[0],
        "sources": {name: {"val_name": sources[name].val_name, **manifest} for name, manifest in joined.items()},
    }


def main(stage: Stage) -> None:
    texts = join(Path("cache/manifests"), stage.params.sources)
    write_json(stage.out("cache/mix.json"), texts)
    write_json(stage.out("cache/chat_mix.json"), join(Path("cache/chat_manifests"), stage.params.chats))
    total = sum(source["train"]["tokens"] for source in texts["sources"].values())
    stage.say(
        f"{len(stage.params.sources)} sources with {total:,} train tokens and {len(stage.params.chats)} of chats, "
        f"V={texts['vocab_size']:,} -> cache/mix.json, cache/chat_mix.json"
    )


if __name__ == "__main__":
    run_stage("mix", main)
