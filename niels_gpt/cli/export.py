"""niels-gpt export, and how commands open a model: from DVC's cache while the next one trains."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from niels_gpt.files.atomic import atomic_path
from niels_gpt.files.checks import Damaged, sha256_file
from niels_gpt.files.messages import read_text
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.params import Params, read_params
from niels_gpt.pipeline.private_text import open_questions
from niels_gpt.pipeline.repository import DvcCache, read_records
from niels_gpt.pipeline.results import is_left_out, read_result
from niels_gpt.pipeline.stores import check_model

if TYPE_CHECKING:
    from niels_gpt.leak.extraction import Extraction, Questions
    from niels_gpt.model.precision import Precision
    from niels_gpt.talk.talker import Talker

ModelFolder = Annotated[str | None, typer.Option("--model", help="folder: models/sft, models/pretrain or an export")]

# The previous model answers while the next one trains. DVC deletes a stage's outputs before it runs the stage, so a
# model's folder is missing while it trains. The previous model is still in DVC's cache, under the hashes that dvc.lock
# names until the new model is complete. The same holds for the tokenizer, which may already be a newer one than the
# model was trained with.


@contextmanager
def answering_model(folder: str) -> Iterator[tuple[Path, Path]]:
    """Yield the folders of a model and of its tokenizer, or links into DVC's cache while the block runs, and say so."""
    path = Path(os.path.relpath(folder))
    model, own, current = _recorded(path)
    place, tokenizer, cache = Path(folder), layout.TOKENIZER, DvcCache()
    known = model and own and current
    with TemporaryDirectory() as temporary:
        links = Path(temporary, "models", path.name), Path(temporary, "tokenizer")
        if known and not (path / layout.CONFIG).is_file() and cache.link(model, links[0]):
            place = links[0]
            typer.echo(
                f"{path} does not exist (DVC removes a model before it trains the next): "
                f"using the previous one, {model[:8]} in DVC's cache",
                err=True,
            )
        if known and place.exists() and (own != current or not tokenizer.is_dir()):
            tokenizer = links[1]
            if not cache.link(own, tokenizer):
                raise ValueError(
                    f"{path} was trained with another tokenizer than the one in {layout.TOKENIZER}, and DVC's cache "
                    "does not have it: wait for the next model, which `dvc repro` trains"
                )
            typer.echo(f"{path} uses the tokenizer it was trained with, {own[:8]} in DVC's cache", err=True)
        yield place, tokenizer


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


def open_model(folder: str, *, slots: int = 1, bf16: bool = False, threads: int = 0) -> "Talker":
    """Open the model of a folder to answer `slots` requests at once, on `threads` CPU threads (0: all)."""
    from niels_gpt.device import prepare_device
    from niels_gpt.model.precision import settle_bf16
    from niels_gpt.talk.talker import open_talker

    check_model(folder)
    device = prepare_device("auto", threads=threads)
    if bf16:
        settle_bf16(device, say=lambda sentence: typer.echo(sentence, err=True))
    precision: Precision = "bf16" if bf16 else "float32"
    with answering_model(folder) as (place, tokenizer):
        return open_talker(place, device=device, tokenizer=tokenizer, slots=slots, precision=precision)


_KNOWN = "pass --i-know to export it anyway"
Leaks = Mapping[str, Mapping[str, Any]]  # what the leak stage measured of a model, by private source


def private_sources(folder: Path, params: Params) -> list[str]:
    """Return the private sources that the model in a folder was trained on."""
    if folder == layout.BASE:  # trained on nothing of the user's
        return []
    weights = {**params.p_train, **({} if folder == layout.PRETRAINED else params.p_sft)}
    return [name for name, weight in weights.items() if weight and params.sources[name].private]


def measured_leaks(folder: Path) -> Leaks | None:
    """Return the leaks of the model in a folder; None if the leak stage did not run, or measured other weights."""
    best = folder / layout.BEST
    if not layout.LEAK.is_file() or not best.is_file():
        return None
    result = read_result(layout.LEAK)
    if result["measured"].get(folder.name) != sha256_file(best):
        return None
    return {source: models[folder.name] for source, models in result["sources"].items()}


def refuse_extractable(talker: "Talker", params: Params, private: Sequence[str], leaks: Leaks | None) -> None:
    """Raise ValueError if text of `private` can be extracted; the model is asked for every private sentence."""
    if leaks is None:
        raise ValueError(
            f"{talker.name} was trained on private text ({', '.join(private)}), and extraction was not measured: "
            f"run `dvc repro leak`, or {_KNOWN}"
        )
    counts = [
        f"{stats['extractable_passages']:,} of {stats['train']['passages']:,} passages of {source}"
        for source, stats in leaks.items()
        if stats["extractable_passages"]
    ]
    for source, questions in open_questions(params, talker, names=private).items():
        found = _ask(talker, questions, params, title=f"sentences of {source}")
        if found.findings:
            counts.append(f"{len(found.findings):,} of {len(questions.asked):,} sentences of {source}")
    if counts:
        raise ValueError(
            f"{talker.name} recites private text verbatim: {', '.join(counts)} ({layout.LEAK_PAGE} shows them); "
            f"docs/private-text.md has remedies, or {_KNOWN}"
        )


def check_files(talker: "Talker", files: Sequence[Path], params: Params) -> None:
    """Raise ValueError if a sentence or a passage of one of these files can be extracted."""
    from niels_gpt.data.readers.files import decode_text, read_bytes
    from niels_gpt.leak.extraction import Questions
    from niels_gpt.leak.passages import DocumentList, cut_passages, encode_sentences, find_sentences, score_passages

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
        questions = baseline or Questions.of(document, DocumentList([]), [], talker.tokenizer)
        scored = score_passages(talker.model, passages, end_of_text=eot, B=settings.B)
        asked = _ask(talker, replace(questions, asked=sentences), params, title=str(file))
        if asked.findings or scored.extractable.any():
            recited = f"{int(scored.extractable.sum())} of {len(scored.passages)} passages"
            found.append(f"{file} ({len(asked.findings)} of {len(sentences)} sentences, {recited})")
    if found:
        raise ValueError(f"{talker.name} recites {', '.join(found)}; nothing was exported")


def _ask(talker: "Talker", questions: "Questions", params: Params, *, title: str) -> "Extraction":
    from niels_gpt.leak.extraction import extract
    from niels_gpt.train.meter import token_progress

    eot, settings = talker.tokenizer.special_token_ids()["eot"], params.leak
    with token_progress([talker.model], total=questions.tokens, title=title):
        return extract(talker.model, questions, end_of_text=eot, B=settings.B, seed=settings.seed)


def export(
    folder: Annotated[str, typer.Argument(help="a new folder to write to")],
    model: ModelFolder = None,
    transformers: Annotated[bool, typer.Option(help="write the format of the transformers library")] = False,
    gguf: Annotated[bool, typer.Option(help="write a GGUF file for llama.cpp, Ollama and LM Studio")] = False,
    f32: Annotated[bool, typer.Option(help="with --gguf: matrices in float32, not float16")] = False,
    q8: Annotated[bool, typer.Option(help="with --gguf: matrices in 8 bits (Q8_0), not float16")] = False,
    refuse_if_extractable: Annotated[
        list[Path] | None, typer.Option(help="refuse if the model recites a sentence of this file; repeatable")
    ] = None,
    i_know: Annotated[bool, typer.Option("--i-know", help="export although private text can be extracted")] = False,
) -> None:
    """Export the model: safetensors, config, tokenizer, and a model card with data, parameters and hashes."""
    if Path(folder).exists():
        raise ValueError(f"{folder} exists: name a new folder")
    if (transformers and gguf) or (f32 and q8) or ((f32 or q8) and not gguf):
        raise ValueError("choose one format: --transformers, --gguf (f16), --gguf --q8, --gguf --f32, or none of them")
    model = model or final_model()
    check_model(model)
    if not (Path(model) / layout.CONFIG).is_file():  # one from DVC's cache would not match the card's metrics
        raise Damaged(model, "holds no model yet")
    talker = open_model(model)
    params, raw = read_params()
    # A pretrained model is not trained on chats, though it may know their format from its base.
    chat_mix = {"sources": {}} if Path(model) == layout.PRETRAINED else read_result(layout.CHAT_MIX)
    mix, metrics = read_result(layout.MIX), read_result(layout.SCORES)
    made_of = {"params": raw, "mix": mix, "chat_mix": chat_mix, "metrics": metrics}
    private = private_sources(Path(model), params)
    leaks = measured_leaks(Path(model)) if private else {}
    if private and not i_know:
        refuse_extractable(talker, params, private, leaks)
    if refuse_if_extractable:
        check_files(talker, refuse_if_extractable, params)
    talker.model.to("cpu")  # all formats are written from CPU memory
    from niels_gpt.base.imported import provenance_of
    from niels_gpt.talk.export.card import Form, model_card
    from niels_gpt.talk.export.folders import export_model, export_transformers, write_card
    from niels_gpt.talk.export.gguf import export_gguf

    base, name = provenance_of(layout.BASE), Path(folder).name
    form: Form = "transformers" if transformers else "gguf" if gguf else "plain"
    card = model_card(talker, form=form, folder=name, private=private, leaks=leaks, base=base, **made_of)
    with atomic_path(Path(folder)) as temporary:
        if transformers:
            export_transformers(talker, temporary)
        elif gguf:
            export_gguf(talker, temporary, precision="f32" if f32 else "q8_0" if q8 else "f16", base=base)
        else:
            export_model(talker, temporary, tokenizer=layout.TOKENIZER)
        write_card(temporary, card, base)
    typer.echo(f"{folder} holds {talker.name}, {talker.model.parameter_count():,} parameters")
