"""mix: the join. DVC cannot take a list of dependencies, so two small files name every token file of every source."""

from __future__ import annotations

from collections.abc import Mapping

from niels_gpt.cache.join import check_tokenizers, join_manifests
from niels_gpt.files.atomic import write_json
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.sources import AnySource
from niels_gpt.pipeline.stage import Stage, run_stage


def val_names(sources: Mapping[str, AnySource]) -> dict[str, str]:
    return {name: source.val_name for name, source in sources.items()}


def main(stage: Stage) -> None:
    texts = join_manifests(
        layout.MANIFESTS, val_names(stage.params.sources), required=["train.tokens", "train.parts", "val.parts"]
    )
    chats = join_manifests(
        layout.CHAT_MANIFESTS, val_names(stage.params.chats), required=["special_token_ids", "folder", "files"]
    )
    identity = ("tokenizer_sha256", "vocab_size")
    check_tokenizers({name: {key: mix[key] for key in identity} for name, mix in (("texts", texts), ("chats", chats))})
    write_json(stage.out(layout.MIX), texts)
    write_json(stage.out(layout.CHAT_MIX), chats)
    total = sum(source["train"]["tokens"] for source in texts["sources"].values())
    stage.say(
        f"{len(stage.params.sources)} sources with {total:,} train tokens and {len(stage.params.chats)} of chats, "
        f"V={texts['vocab_size']:,} -> {layout.MIX}, {layout.CHAT_MIX}"
    )


if __name__ == "__main__":
    run_stage("mix", main)
