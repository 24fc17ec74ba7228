"""mix: the join. DVC cannot take a list of dependencies, so one small file names every shard of every source."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.atomic import write_json
from niels_gpt.cache.meta import read_meta
from stages.stage import Stage, run_stage


def main(stage: Stage) -> None:
    manifests = {name: read_meta(Path("cache/manifests", f"{name}.json")) for name in sorted(stage.params.sources)}
    tokenizers = {(manifest.pop("tokenizer_sha256"), manifest.pop("vocab_size")) for manifest in manifests.values()}
    if len(tokenizers) > 1:
        raise ValueError("the sources were encoded by different tokenizers: run `dvc repro` for all of them")
    tokenizer_sha256, vocab_size = tokenizers.pop()
    sources = {
        name: {"val_name": stage.params.sources[name].val_name, **manifest} for name, manifest in manifests.items()
    }
    write_json(
        stage.out("cache/mix.json"),
        {"tokenizer_sha256": tokenizer_sha256, "vocab_size": vocab_size, "sources": sources},
    )
    total = sum(source["train"]["tokens"] for source in sources.values())
    stage.say(f"{len(sources)} sources, {total:,} train tokens, V={vocab_size} -> cache/mix.json")


if __name__ == "__main__":
    run_stage("mix", main)
