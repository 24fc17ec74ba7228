"""What whoever gets a model can get out of it: the leak stage's numbers, and a full check before an export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_gpt.files.checksums import sha256_file
from niels_gpt.files.progress import progress
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.private_text import open_questions
from niels_gpt.pipeline.results import read_result

if TYPE_CHECKING:
    from niels_gpt.eval.extraction import Extraction, Questions
    from niels_gpt.talk.talker import Talker

_KNOWN = "give --i-know to export it all the same"


@dataclass(frozen=True)
class Sharing:
    """The private sources a model was trained on, and what the leak stage measured of each: None if it measured other
    weights than these."""

    private: tuple[str, ...]
    leaks: Mapping[str, Mapping[str, Any]] | None

    def refuse(self, talker: Talker, params: Params) -> None:
        """Raise where private text can be extracted; asks for every private sentence."""
        if not self.private:
            return
        if self.leaks is None:
            raise ValueError(
                f"{talker.name} was trained on private text ({', '.join(self.private)}), and what can be extracted was "
                f"not measured: run `dvc repro leak`, or {_KNOWN}"
            )
        counts = [
            f"{stats['extractable_passages']:,} of {stats['train']['passages']:,} passages of {source}"
            for source, stats in self.leaks.items()
            if stats["extractable_passages"]
        ]
        for source, questions in open_questions(params, talker, names=self.private).items():
            found = _ask(talker, questions, params, title=f"sentences of {source}")
            if found.findings:
                counts.append(f"{len(found.findings):,} of {found.asked:,} sentences of {source}")
        if counts:
            raise ValueError(
                f"{talker.name} recites private text verbatim: {', '.join(counts)} ({layout.LEAK_PAGE} shows them); "
                f"docs/private-text.md says what lowers it, or {_KNOWN}"
            )


def sharing_of(folder: Path, params: Params) -> Sharing:
    """Return what is known of the model in a folder."""
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


def check_files(talker: Talker, files: Sequence[Path], params: Params) -> None:
    """Raise where a sentence or a passage of one of these files can be extracted."""
    from niels_gpt.data.readers.files import decode_text, read_bytes
    from niels_gpt.eval.extraction import Questions, read_sentences
    from niels_gpt.eval.leak import tell
    from niels_gpt.eval.passages import DocumentList, cut_passages

    if not files:
        return
    eot, settings = talker.tokenizer.special_token_ids()["eot"], params.leak
    baseline = next(iter(open_questions(params, talker, names=None).values()), None)
    found = []
    for file in files:
        ids = talker.tokenizer.encode(decode_text(read_bytes(str(file)))[0])
        document = DocumentList([ids])
        sentences = read_sentences(document, talker.tokenizer)
        passages = cut_passages(document, chunk_size=settings.chunk_size, prompt_tokens=settings.prompt_tokens)
        if not sentences and not len(passages):
            raise ValueError(f"{file} has {len(ids)} tokens, too few to ask for: leave it out")
        questions = baseline or Questions.of(document, DocumentList([]), [], talker.tokenizer, at_most_tokens=None)
        told = tell(talker.model, passages, end_of_text=eot, B=settings.B)
        asked = _ask(talker, replace(questions, sentences=sentences, asked=len(sentences)), params, title=str(file))
        if asked.findings or told.extractable.any():
            passages_told = f"{int(told.extractable.sum())} of {len(told.passages)} passages"
            found.append(f"{file} ({len(asked.findings)} of {len(sentences)} sentences, {passages_told})")
    if found:
        raise ValueError(f"{talker.name} recites {', '.join(found)}; nothing was exported")


def _ask(talker: Talker, questions: Questions, params: Params, *, title: str) -> Extraction:
    from niels_gpt.eval.extraction import extract

    total = questions.asked + len(questions.held_out)
    with progress(total=total, unit=" sentences", title=title) as bar:
        return extract(
            talker.model,
            questions,
            end_of_text=talker.tokenizer.special_token_ids()["eot"],
            B=params.leak.B,
            seed=params.leak.seed,
            advance=bar.update,
        )
