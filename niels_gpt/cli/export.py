"""Open a model, from DVC's cache while the next one trains, and check it for extractable text before an export."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from niels_gpt.files.checks import sha256_file
from niels_gpt.files.messages import read_text
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params
from niels_gpt.pipeline.private_text import open_questions
from niels_gpt.pipeline.repository import DvcCache, read_records
from niels_gpt.pipeline.results import is_left_out, read_result
from niels_gpt.pipeline.stores import check_model

if TYPE_CHECKING:
    from niels_gpt.leak.extraction import Extraction, Questions
    from niels_gpt.model.precision import Precision
    from niels_gpt.talk.talker import Talker


# The previous model answers while the next one trains. DVC deletes a stage's outputs before it runs the stage, so a
# model's folder is missing while it trains. The previous model is still in DVC's cache, under the hashes that dvc.lock
# names until the new model is complete. The same holds for the tokenizer, which may already be a newer one than the
# model was trained with.


class Answering(NamedTuple):
    """Folders of a model and of its tokenizer, and a message for the user if either comes from DVC's cache."""

    folder: Path
    tokenizer: Path
    said: str = ""


@contextmanager
def answering_model(folder: str) -> Iterator[Answering]:
    """Yield the model of a folder, or the one in DVC's cache if it is missing, with the tokenizer it was trained with.

    Files from the cache are symbolic links, which are deleted when the block ends.
    """
    path = Path(os.path.relpath(folder))
    model, own, current = _recorded(path)
    place, tokenizer = Path(folder), layout.TOKENIZER
    if not (model and own and current):
        yield Answering(place, tokenizer)
        return
    cache, said = DvcCache(), []
    with TemporaryDirectory() as temporary:
        if not (path / layout.CONFIG).is_file() and cache.link(model, Path(temporary, "models", path.name)):
            place = Path(temporary, "models", path.name)
            said.append(
                f"{path} does not exist (DVC removes a model before it trains the next): "
                f"using the previous one, {model[:8]} in DVC's cache"
            )
        if place.exists() and (own != current or not tokenizer.is_dir()):
            tokenizer = Path(temporary, "tokenizer")
            if not cache.link(own, tokenizer):
                raise ValueError(
                    f"{path} was trained with another tokenizer than the one in {layout.TOKENIZER}, and DVC's cache "
                    "does not have it: wait for the next model, which `dvc repro` trains"
                )
            said.append(f"{path} uses the tokenizer it was trained with, {own[:8]} in DVC's cache")
        yield Answering(place, tokenizer, "\n".join(said))


def _recorded(path: Path) -> tuple[str, str, str]:
    """Return the MD5 of a model, of its tokenizer and of the latest tokenizer in dvc.lock; "" for what is missing."""
    records = (read_records(read_text(layout.LOCK)) if layout.LOCK.is_file() else None) or {}

    def md5(stage: str, kind: str, path: Path) -> str:
        entries = records.get(stage, {}).get(kind, [])
        return next((entry["md5"] for entry in entries if entry["path"] == str(path)), "")

    stage = next((stage for stage, folder in layout.MODEL_OF.items() if folder == path), "")
    tokenizers = md5(stage, "deps", layout.TOKENIZER), md5("tokenizer", "outs", layout.TOKENIZER)
    return md5(stage, "outs", path), *tokenizers


def final_model() -> str:
    """Return the fine-tuned model's folder; if that stage was skipped, print so and return the pretrained one's."""
    if not is_left_out(layout.TUNED):
        return str(layout.TUNED)
    typer.echo(f"no fine-tuned model in {layout.TUNED}: using {layout.PRETRAINED}", err=True)
    return str(layout.PRETRAINED)


def open_model(folder: str, device: str = "auto", *, slots: int = 1, bf16: bool = False, threads: int = 0) -> Talker:
    """Open the model of a folder to answer `slots` requests at once, on `threads` CPU threads (0: all)."""
    from niels_gpt.device import prepare_device
    from niels_gpt.model.precision import settle_bf16
    from niels_gpt.talk.talker import open_talker

    check_model(folder)
    device = prepare_device(device, threads=threads)
    if bf16:
        settle_bf16(device, say=lambda sentence: typer.echo(sentence, err=True))
    precision: Precision = "bf16" if bf16 else "float32"
    with answering_model(folder) as found:
        if found.said:
            typer.echo(found.said, err=True)
        return open_talker(found.folder, device=device, tokenizer=found.tokenizer, slots=slots, precision=precision)


_KNOWN = "pass --i-know to export it anyway"


@dataclass(frozen=True)
class Sharing:
    """Private sources a model was trained on, and the leak stage's measurements of each.

    `leaks` is None if the leak stage did not run, or measured other weights than these.
    """

    private: tuple[str, ...]
    leaks: Mapping[str, Mapping[str, Any]] | None

    def refuse(self, talker: Talker, params: Params) -> None:
        """Raise ValueError if private text can be extracted; the model is asked for every private sentence."""
        if not self.private:
            return
        if self.leaks is None:
            raise ValueError(
                f"{talker.name} was trained on private text ({', '.join(self.private)}), and extraction was "
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
                counts.append(f"{len(found.findings):,} of {len(questions.asked):,} sentences of {source}")
        if counts:
            raise ValueError(
                f"{talker.name} recites private text verbatim: {', '.join(counts)} ({layout.LEAK_PAGE} shows them); "
                f"docs/private-text.md has remedies, or {_KNOWN}"
            )


def sharing_of(folder: Path, params: Params) -> Sharing:
    """Return the private sources of the model in a folder, and what the leak stage measured of them."""
    if folder == layout.BASE:  # trained on nothing of the user's
        return Sharing((), {})
    weights = {**params.p_train, **({} if folder == layout.PRETRAINED else params.p_sft)}
    private = tuple(name for name, weight in weights.items() if weight and params.sources[name].private)
    best = folder / layout.BEST
    if not private or not layout.LEAK.is_file() or not best.is_file():
        return Sharing(private, None if private else {})
    result = read_result(layout.LEAK)
    measured = result["measured"].get(folder.name) == sha256_file(best)
    found = {source: models[folder.name] for source, models in result["sources"].items()} if measured else None
    return Sharing(private, found)


def check_files(talker: Talker, files: Sequence[Path], params: Params) -> None:
    """Raise ValueError if a sentence or a passage of one of these files can be extracted."""
    from niels_gpt.data.readers.files import decode_text, read_bytes
    from niels_gpt.leak.extraction import Questions
    from niels_gpt.leak.passages import (
        DocumentList,
        cut_passages,
        encode_sentences,
        find_sentences,
        score_passages,
    )

    if not files:
        return
    eot, settings = talker.tokenizer.special_token_ids()["eot"], params.leak
    baseline = next(iter(open_questions(params, talker, names=None).values()), None)
    found = []
    for file in files:
        ids = talker.tokenizer.encode(decode_text(read_bytes(str(file)))[0])
        document = DocumentList([ids])
        sentences = encode_sentences(find_sentences(document, talker.tokenizer), talker.tokenizer)
        passages = cut_passages(document, chunk_size=settings.chunk_size, prompt_tokens=settings.prompt_tokens)
        if not sentences and not len(passages):
            raise ValueError(f"{file} has {len(ids)} tokens, too few to test: drop it from the command")
        questions = baseline or Questions.of(document, DocumentList([]), [], talker.tokenizer, at_most_tokens=None)
        scored = score_passages(talker.model, passages, end_of_text=eot, B=settings.B)
        asked = _ask(talker, replace(questions, asked=sentences), params, title=str(file))
        if asked.findings or scored.extractable.any():
            recited = f"{int(scored.extractable.sum())} of {len(scored.passages)} passages"
            found.append(f"{file} ({len(asked.findings)} of {len(sentences)} sentences, {recited})")
    if found:
        raise ValueError(f"{talker.name} recites {', '.join(found)}; nothing was exported")


def _ask(talker: Talker, questions: Questions, params: Params, *, title: str) -> Extraction:
    from niels_gpt.leak.extraction import extract
    from niels_gpt.train.meter import token_progress

    eot, settings = talker.tokenizer.special_token_ids()["eot"], params.leak
    with token_progress([talker.model], total=questions.tokens, title=title):
        return extract(talker.model, questions, end_of_text=eot, B=settings.B, seed=settings.seed)
