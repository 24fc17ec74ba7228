"""Stage `mix`: join the manifests of all sources.

DVC cannot depend on a list of files that varies, so two small files name every token file of every source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from niels_gpt.cache.join import check_tokenizers, join_manifests
from niels_gpt.files.atomic import write_json
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.sources import AnySource
from niels_gpt.pipeline.stage import Stage, run_stage


def val_names(sources: Mapping[str, AnySource]) -> dict[str, str]:
    """Return the name of each source's validation set."""
    return {name: source.val_name for name, source in sources.items()}


def main(stage: Stage) -> None:
    """Join the manifests of texts and of chats, and check that all used the same tokenizer."""
    texts = join_manifests(
        layout.MANIFESTS, val_names(stage.params.sources), required=["train.tokens", "train.parts", "val.parts"]
    )
    identity = {key: texts[key] for key in ("tokenizer_sha256", "vocab_size")}
    chats: dict[str, Any] = {**identity, "sources": {}}
    if stage.params.chats:
        chats = join_manifests(
            layout.CHAT_MANIFESTS, val_names(stage.params.chats), required=["special_token_ids", "folder", "files"]
        )
    check_tokenizers({"texts": identity, "chats": {key: chats[key] for key in identity}})
    write_json(stage.out(layout.MIX), texts)
    write_json(stage.out(layout.CHAT_MIX), chats)
    total = sum(source["train"]["tokens"] for source in texts["sources"].values())
    stage.say(
        f"{len(stage.params.sources)} sources with {total:,} train tokens and {len(stage.params.chats)} of chats, "
        f"V={texts['vocab_size']:,} -> {layout.MIX}, {layout.CHAT_MIX}"
    )


if __name__ == "__main__":
    run_stage("mix", main)
