"""Stage `cache`: join the manifests of all sources to the manifest of the token cache.

DVC cannot depend on a list of files that varies, so two small files name every token file of every source.
"""

from __future__ import annotations

from typing import Any

from niels_gpt.cache.join import check_tokenizers, join_manifests
from niels_gpt.files.atomic import write_json
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage


def main(stage: Stage) -> None:
    """Join the manifests of texts and of chats, and check that all used the same tokenizer."""
    text_names, chat_names = (
        {name: source.val_name for name, source in sources.items()}
        for sources in (stage.params.texts, stage.params.chats)
    )
    texts = join_manifests(layout.MANIFESTS, text_names, required=["train.tokens", "train.parts", "val.parts"])
    identity = {key: texts[key] for key in ("tokenizer_sha256", "vocab_size")}
    chats: dict[str, Any] = {**identity, "sources": {}}
    if chat_names:
        chats = join_manifests(layout.MANIFESTS, chat_names, required=["special_token_ids", "folder", "files"])
    check_tokenizers({"texts": identity, "chats": {key: chats[key] for key in identity}})
    write_json(stage.out(layout.MIX), texts)
    write_json(stage.out(layout.CHAT_MIX), chats)
    total = sum(source["train"]["tokens"] for source in texts["sources"].values())
    stage.say(
        f"{len(text_names)} sources of text with {total:,} train tokens and {len(chat_names)} of chats, "
        f"V={texts['vocab_size']:,} -> {layout.MIX}, {layout.CHAT_MIX}"
    )


if __name__ == "__main__":
    run_stage("cache", main)
