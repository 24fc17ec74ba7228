"""Private documents of a run: sentences to ask models for, and a copy of pretraining with canaries among them."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from niels_gpt.cache.sft_dataset import open_chats
from niels_gpt.cache.token_parts import encode_documents
from niels_gpt.cache.windows import TokenStore
from niels_gpt.files.checks import described_by, read_meta
from niels_gpt.leak.extraction import Questions
from niels_gpt.leak.measure import REFERENCES, exposure_stats, make_canaries, measure_exposure, plant, planted_texts
from niels_gpt.leak.passages import Documents
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.stage import Stage, project_root
from niels_gpt.pipeline.stores import open_documents, token_places
from niels_gpt.pipeline.training import execution_of, open_pretraining, train_beside
from niels_gpt.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from niels_gpt.talk.talker import Talker


def open_sources(params: Params, *, T: int, private: bool) -> dict[str, tuple[Documents, Documents]]:
    """Return (training, held-out) documents of private or of public sources by name; a chat is a document."""
    names = [name for name, source in params.chats.items() if source.private == private]
    chats = open_chats(layout.CHAT_MIX, names=names, T=T, device="cpu")
    mix, places = read_meta(layout.MIX), token_places(params)
    texts: dict[str, tuple[Documents, Documents]] = {}
    for name in (name for name, source in params.texts.items() if source.private == private):
        with described_by(layout.MIX):
            manifest = {**mix["sources"][name], "vocab_size": mix["vocab_size"]}
            train, held_out = (TokenStore(name, manifest, places=places, split=split) for split in ("train", "val"))
        texts[name] = train, held_out
    return {**texts, **{name: (chats.train[name], chats.val[name]) for name in names}}


def open_questions(params: Params, talker: "Talker", *, names: Collection[str] | None) -> dict[str, Questions]:
    """Return the sentences of private sources (all if `names` is None), to test extraction from any model with."""
    T, tokenizer = talker.model.cfg.T, talker.tokenizer
    public = [train for train, _ in open_sources(params, T=T, private=False).values()]
    return {
        name: Questions.of(train, held_out, public, tokenizer)
        for name, (train, held_out) in open_sources(params, T=T, private=True).items()
        if names is None or name in names
    }


# The copy is trained on temporary files, and only numbers remain: none of the user's files and none of the pipeline's
# models contains a canary. It does not include fine-tuning.


def measure_planted_run(stage: Stage) -> dict[str, Any]:
    """Train or resume the copy, with canaries in its most sampled private source, and return their exposure."""
    params, settings = stage.params, stage.params.leak
    drawn = {name: weight for name, weight in params.p_train.items() if weight and params.sources[name].private}
    if not drawn:
        raise ValueError(
            "leak.canaries: no source with a weight in p_train is private, so none can be inserted: set it to 0"
        )
    source, tokenizer = max(sorted(drawn), key=drawn.__getitem__), load_tokenizer(layout.TOKENIZER)
    canaries = make_canaries(settings.canaries, seed=settings.seed)
    checkpoints = project_root() / layout.CHECKPOINTS
    checkpoints.mkdir(exist_ok=True)
    with execution_of(stage) as execution, TemporaryDirectory(dir=checkpoints, prefix="canaries-") as copies:
        task, model_cfg = open_pretraining(params, device=execution.device)
        planted = plant(
            open_documents(params, source),
            list(encode_documents(tokenizer, planted_texts(canaries))),
            folder=Path(copies),
            seed=settings.seed,
            apart=params.train.document_mask,
            dtype=tokenizer.dtype,
        )
        task = replace(task, train={**task.train, source: planted})
        model = train_beside(stage, task, model_cfg, execution=execution, name="canaries")
    found = measure_exposure(model, tokenizer, canaries, seed=settings.seed, B=settings.B)
    return {"source": source, "references": REFERENCES, "by_copies": exposure_stats(canaries, *found)}
