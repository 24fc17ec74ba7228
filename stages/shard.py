"""shard@S: the token budget, cut into fixed shards, and a manifest that names each by its sha256."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.cache.integrity import described_by, read_checked
from niels_gpt.cache.meta import describe_origin, list_files, write_meta
from niels_gpt.cache.shards import write_shards
from niels_gpt.files.atomic import write_json
from niels_gpt.pipeline.stage import Stage, run_stage


def main(stage: Stage) -> None:
    tokens, budget = Path("cache/tokens", stage.key), stage.source.shard
    shard_bytes = stage.params.shard.shard_bytes
    out = stage.out(f"cache/pretrain/{stage.key}")
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
        shards = list_files(out, f"{split}/shard_*.bin", published=f"cache/pretrain/{stage.key}")
        (offsets,) = list_files(out, f"{split}/offsets.npy", published=f"cache/pretrain/{stage.key}")
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
    write_json(stage.out(f"cache/manifests/{stage.key}.json"), manifest)
    stage.say(
        f"{manifest['train']['tokens']:,} train and {manifest['val']['tokens']:,} val tokens in "
        f"{len(manifest['train']['shards'])} + {len(manifest['val']['shards'])} shards -> cache/pretrain/{stage.key}"
    )


if __name__ == "__main__":
    run_stage("shard", main)
