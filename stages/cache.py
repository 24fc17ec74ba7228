"""Stage `cache`: join the manifests of all sources to the manifest of the token cache.

DVC cannot depend on a list of files that varies, so two small files name every token file of every source.
"""

from collections.abc import Mapping
from typing import Any

from niels_gpt.cache.formats import ANSWER_IDS
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import read_meta
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage

# Keys that describe the tokenizer, which is the same for all sources; the joined file has them at the top level.
_SHARED = ("tokenizer_sha256", "vocab_size", "special_token_ids", "token_dtype", ANSWER_IDS)
_REQUIRED = {
    "text": ("tokenizer_sha256", "vocab_size", "train.tokens", "train.parts", "val.parts"),
    "chat": ("tokenizer_sha256", "vocab_size", "special_token_ids", "folder", "files"),
}


def join_manifests(manifests: Mapping[str, Mapping[str, Any]], val_names: Mapping[str, str]) -> dict[str, Any]:
    """Return one manifest of these sources, each with the name of its validation set in metrics."""
    joined: dict[str, Any] = {"sources": {name: {"val_name": val_names[name]} for name in manifests}}
    for name, manifest in manifests.items():
        for key, value in manifest.items():
            (joined if key in _SHARED else joined["sources"][name])[key] = value
    return joined


def main(stage: Stage) -> None:
    """Join the manifests of texts and of chats, after checking that one tokenizer encoded all of them."""
    sources = stage.params.sources
    manifests = {
        name: read_meta(layout.MANIFESTS / f"{name}.json", required=_REQUIRED[source.use])
        for name, source in sorted(sources.items())
    }
    if len({manifest["tokenizer_sha256"] for manifest in manifests.values()}) > 1:
        raise ValueError(f"{', '.join(manifests)} were encoded by different tokenizers: encode them all again")
    val_names = {name: source.val_name for name, source in sources.items()}
    texts, chats = (
        join_manifests({name: manifests[name] for name in manifests if name in names}, val_names)
        for names in (stage.params.texts, stage.params.chats)
    )
    identity = {key: texts[key] for key in ("tokenizer_sha256", "vocab_size")}
    write_json(stage.out(layout.MIX), texts)
    write_json(stage.out(layout.CHAT_MIX), {**identity, **chats})
    total = sum(source["train"]["tokens"] for source in texts["sources"].values())
    stage.say(
        f"{len(texts['sources'])} sources of text with {total:,} train tokens and {len(chats['sources'])} of chats, "
        f"V={texts['vocab_size']:,} -> {layout.MIX}, {layout.CHAT_MIX}"
    )


if __name__ == "__main__":
    run_stage("cache", main)
