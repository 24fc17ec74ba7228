"""Stage `tokenize@S`: encode each row once; documents and turns end with the `eot` id."""

from typing import Any

from niels_gpt.cache.meta import describe_origin, write_meta
from niels_gpt.cache.token_parts import (
    describe_chats,
    describe_tokenizer,
    encode_chats,
    encode_parts,
    listed_names,
    write_sft_files,
)
from niels_gpt.data.corpus.parts import Texts
from niels_gpt.data.corpus.split_files import Splits
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import list_files
from niels_gpt.files.messages import progress
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage
from niels_gpt.pipeline.stores import open_engine, open_source, place_of
from niels_gpt.tokenizer import load_tokenizer
from niels_gpt.tokenizer.vocabulary import Tokenizer


def tokenize_texts(stage: Stage, tokenizer: Tokenizer, texts: Texts, splits: Splits, meta: dict[str, Any]) -> None:
    """Encode the documents of a source up to its token budgets, and write token files and manifest."""
    out = layout.TOKENS / "text" / stage.key
    stage.out(out).mkdir()
    made_of = (texts.digest, splits.facts, meta["tokenizer_sha256"])
    place = place_of(stage, out, "tokens", *made_of, stored=texts.at is not None)
    with progress(total=texts.text_bytes, unit="B", title=stage.title) as bar:
        counted = encode_parts(
            open_engine(stage.params),
            texts,
            splits,
            layout.TOKENIZER,
            tokens=place.store,
            budgets=stage.source.budget.by_split(),
            say=stage.say,
            tick=bar.update,
        )
    place.finish(listed_names(counted))
    for split, found in counted.items():
        if not found["parts"]:
            raise ValueError(
                f"no document for {split} within its budget: raise budget.max_{split}_tokens; where that is null, add "
                "text, or choose another val_frac"
            )
    identity = {key: meta[key] for key in ("tokenizer_sha256", "vocab_size")}
    where = {} if place.at is None else {"at": place.at}
    totals = {f"{split}_tokens": found["tokens"] for split, found in counted.items()}
    # Each part makes one token file per split, with no limit on its size, so the largest size is recorded.
    shard_bytes = max(part["bytes"] for found in counted.values() for part in found["parts"])
    write_meta(stage.out(out) / "meta.json", {**meta, "shard_bytes": shard_bytes, **totals})
    write_json(stage.out(layout.MANIFESTS / f"{stage.key}.json"), {**identity, **where, **counted})
    stage.say(
        f"{totals['train_tokens']:,} train and {totals['val_tokens']:,} val tokens in "
        f"{len(counted['train']['parts'])} + {len(counted['val']['parts'])} files -> {place}"
    )


def tokenize_chats(stage: Stage, tokenizer: Tokenizer, texts: Texts, splits: Splits, meta: dict[str, Any]) -> None:
    """Encode the chats of a source up to its token budgets, and drop those without an answer to learn."""
    place = layout.TOKENS / "chat" / stage.key
    out = stage.out(place)
    out.mkdir()
    examples = encode_chats(tokenizer, texts, splits, budgets=stage.source.budget.by_split())
    totals = write_sft_files(out, examples, tokenizer=tokenizer)
    for split in ("train", "val"):
        if not totals[f"{split}_examples"]:
            raise ValueError(
                f"no chat for {split} has an answer within its budget: add chats, or raise budget.max_{split}_tokens"
            )
    write_meta(out / "meta.json", {**meta, **totals})
    manifest = {
        **describe_tokenizer(tokenizer),
        **describe_chats(tokenizer),
        "folder": str(place),
        "files": list_files(out, "*_*.*", published=str(place)),
    }
    write_json(stage.out(layout.MANIFESTS / f"{stage.key}.json"), manifest)
    dropped = totals["train_dropped"] + totals["val_dropped"]
    stage.say(
        f"{totals['train_examples']:,} train and {totals['val_examples']:,} val chats, {dropped:,} dropped for want of "
        f"an answer -> {place}"
    )


def main(stage: Stage) -> None:
    """Encode the texts or the chats of one source."""
    tokenizer = load_tokenizer(layout.TOKENIZER)
    texts, splits = open_source(stage.params, stage.key)
    meta = {**describe_tokenizer(tokenizer), **describe_origin(texts.facts, splits.facts)}
    (tokenize_chats if stage.source.use == "chat" else tokenize_texts)(stage, tokenizer, texts, splits, meta)


if __name__ == "__main__":
    run_stage("tokenize", main)
