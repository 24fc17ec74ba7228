"""Stage `cache`: join the manifests of all sources to the manifest of the token cache.

DVC cannot depend on a list of files that varies, so two small files name every token file of every source.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from niels_gpt.cache.formats import ANSWER_IDS
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import read_meta
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage

# Keys whose values must be equal in all sources of a mix; the joined file has them once, at the top level.
_SHARED = ("tokenizer_sha256", "vocab_size", "special_token_ids", "token_dtype", ANSWER_IDS)


def join_manifests(manifests: Path, val_names: Mapping[str, str], *, required: Sequence[str]) -> dict[str, Any]:
    """Return one manifest of the sources in `val_names`, after checking that they share one tokenizer.

    `val_names` maps each source to the name of its validation set in metrics; `required` are keys of every manifest.
    """
    required = ["tokenizer_sha256", "vocab_size", *required]
    joined = {name: read_meta(manifests / f"{name}.json", required=required) for name in sorted(val_names)}
    shared = [{key: manifest.pop(key) for key in _SHARED if key in manifest} for manifest in joined.values()]
    check_tokenizers(dict(zip(joined, shared, strict=True)))
    return {
        **shared[0],
        "sources": {name: {"val_name": val_names[name], **manifest} for name, manifest in joined.items()},
    }


def check_tokenizers(shared: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise a ValueError naming the sources that were encoded by another tokenizer than the first."""
    first, *others = shared
    differing = [name for name in others if shared[name] != shared[first]]
    if differing:
        raise ValueError(
            f"{', '.join(differing)} and {first} were encoded by different tokenizers: encode them all again"
        )


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
