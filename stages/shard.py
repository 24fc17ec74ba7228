"""shard@S: the token budget, cut into fixed shards, and a manifest that names each by its sha256."""

from __future__ import annotations

from niels_gpt.cache.integrity import described_by, read_checked
from niels_gpt.cache.meta import describe_origin, list_files, write_meta
from niels_gpt.cache.shards import write_shards
from niels_gpt.files.atomic import write_json
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage


def main(stage: Stage) -> None:
    tokens, place, budget = layout.TOKENS / stage.key, layout.SHARDS / stage.key, stage.source.shard
    shard_bytes = stage.params.shard.shard_bytes
    out = stage.out(place)
    provenance = read_checked(tokens / "meta.json")
    with described_by(tokens / "meta.json"):
        del provenance["files"]
        manifest = {"tokenizer_sha256": provenance["tokenizer_sha256"], "vocab_size": provenance["vocab_size"]}
        origin = describe_origin(provenance.pop("source"), provenance.pop("split"))
    for split, max_tokens in (("train", budget.max_train_tokens), ("val", budget.max_val_tokens)):
        kept = write_shards(
            tokens / f"{split}_tokens.bin",
            tokens / f"{split}_idx.npy",
            out / split,
            shard_bytes=shard_bytes,
            max_tokens=max_tokens,
        )
        shards = list_files(out, f"{split}/shard_*.bin", published=str(place))
        (offsets,) = list_files(out, f"{split}/offsets.npy", published=str(place))
        manifest[split] = {"tokens": kept, "shards": shards, "offsets": offsets}
    write_meta(
        out / "meta.json",
        {
            **provenance,
            **origin,
            "shard_bytes": shard_bytes,
            "train_tokens": manifest["train"]["tokens"],
            "val_tokens": manifest["val"]["tokens"],
        },
    )
    write_json(stage.out(layout.MANIFESTS / f"{stage.key}.json"), manifest)
    stage.say(
        f"{manifest['train']['tokens']:,} train and {manifest['val']['tokens']:,} val tokens in "
        f"{len(manifest['train']['shards'])} + {len(manifest['val']['shards'])} shards -> {place}"
    )


if __name__ == "__main__":
    run_stage("shard", main)
