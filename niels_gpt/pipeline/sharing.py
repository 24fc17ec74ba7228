"""What a model tells of private text to whoever gets it: what the leak stage measured of it, and what is measured of
documents that its owner names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_gpt.files.checksums import sha256_file
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.results import read_result

if TYPE_CHECKING:
    from niels_gpt.talk.talker import Talker

_KNOWN = "give --i-know to export it all the same"


@dataclass(frozen=True)
class Sharing:
    """The private sources that a model was trained on, and by source what it tells of them: None where this very model
    was not measured."""

    private: tuple[str, ...]
    leaks: Mapping[str, Mapping[str, Any]] | None

    def refuse(self, model: str) -> None:
        """Raise where its owner should know something before it leaves the house."""
        if not self.private:
            return
        if self.leaks is None:
            raise ValueError(
                f"{model} was trained on private text ({', '.join(self.private)}), and what it tells of that was not "
                f"measured: run `dvc repro leak`, or {_KNOWN}"
            )
        told = {source: stats for source, stats in self.leaks.items() if stats["extractable_passages"]}
        if told:
            counts = ", ".join(
                f"{stats['extractable_passages']:,} of {stats['train']['passages']:,} passages of {source}"
                for source, stats in told.items()
            )
            raise ValueError(
                f"{model} can be made to say private text word for word: {counts} ({layout.LEAK_PAGE} shows them); "
                f"docs/private-text.md says what lowers it, or {_KNOWN}"
            )


def sharing_of(folder: Path, params: Params) -> Sharing:
    """Of the model in a folder."""
    weights = {**params.p_train, **({} if folder == layout.PRETRAINED else params.p_sft)}
    sources = {**params.sources, **params.chats}
    private = tuple(name for name, weight in weights.items() if weight and sources[name].private)
    return Sharing(private, _measured(folder) if private else {})


def _measured(folder: Path) -> Mapping[str, Mapping[str, Any]] | None:
    """By source, if the leak stage measured the weights that are there now."""
    if not layout.LEAK.is_file():
        return None
    result, weights = read_result(layout.LEAK), folder / layout.BEST
    if not weights.is_file() or result["measured"].get(folder.name) != sha256_file(weights):
        return None
    return {source: models[folder.name] for source, models in result["sources"].items()}


def refuse_to_tell(talker: Talker, files: Sequence[Path], params: Params) -> None:
    """Raise where the model can be made to say a passage of one of these documents."""
    from niels_gpt.data.readers.files import decode_text, read_bytes
    from niels_gpt.eval.leak import tell
    from niels_gpt.eval.passages import DocumentList, cut_passages

    eot, settings = talker.tokenizer.special_token_ids()["eot"], params.leak
    found = []
    for file in files:
        ids = talker.tokenizer.encode(decode_text(read_bytes(str(file)))[0])
        passages = cut_passages(
            DocumentList([ids]), chunk_size=settings.chunk_size, prompt_tokens=settings.prompt_tokens
        )
        if not len(passages):
            raise ValueError(f"{file} has {len(ids)} tokens, too few to ask for: leave it out of --redact")
        told = tell(talker.model, passages, end_of_text=eot, B=settings.B)
        if told.extractable.any():
            found.append(f"{file} ({int(told.extractable.sum())} of {len(told.passages)} passages)")
    if found:
        raise ValueError(f"{talker.name} can be made to say what it must not: {', '.join(found)}; nothing was exported")
