"""Documents in the token caches of a run, separated into private and public sources."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from niels_gpt.cache.manifest import TokenStore
from niels_gpt.cache.sft_dataset import open_chats
from niels_gpt.files.checks import described_by, read_meta
from niels_gpt.leak.passages import Documents
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.stores import token_places

if TYPE_CHECKING:
    from niels_gpt.leak.extraction import Questions
    from niels_gpt.talk.talker import Talker


def open_sources(params: Params, *, T: int, private: bool) -> dict[str, tuple[Documents, Documents]]:
    """Return (training, held-out) documents of private or of public sources by name; a chat is a document."""
    names = [name for name, source in params.chats.items() if source.private == private]
    chats = open_chats(layout.CHAT_MIX, names=names, T=T, device="cpu", root=Path())
    mix, places = read_meta(layout.MIX), token_places(params)
    texts: dict[str, tuple[Documents, Documents]] = {}
    for name in (name for name, source in params.texts.items() if source.private == private):
        with described_by(layout.MIX):
            manifest = {**mix["sources"][name], "vocab_size": mix["vocab_size"]}
            train, held_out = (TokenStore(name, manifest, places=places, split=split) for split in ("train", "val"))
        texts[name] = train, held_out
    return {**texts, **{name: (chats.train[name], chats.val[name]) for name in names}}


def open_questions(params: Params, talker: Talker, *, names: Collection[str] | None) -> dict[str, Questions]:
    """Return the sentences of private sources (all if `names` is None), to test extraction from any model with."""
    from niels_gpt.leak.extraction import Questions

    T, tokenizer = talker.model.cfg.T, talker.tokenizer
    public = [train for train, _ in open_sources(params, T=T, private=False).values()]
    return {
        name: Questions.of(train, held_out, public, tokenizer, at_most_tokens=None)
        for name, (train, held_out) in open_sources(params, T=T, private=True).items()
        if names is None or name in names
    }
