"""Contents of params.yaml: read, checked section by section, then by rules between values.

Where the library has a rule, it is called. Rules that would import torch (windows, processes) are repeated here, so
that stages that only load text do not wait for torch.
"""

import os
import re
from collections.abc import Callable, Iterator
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError, create_model

from niels_gpt.config import ModelConfig, Section, Seed
from niels_gpt.data.corpus.mix import mix_probabilities
from niels_gpt.eval import EvalRules
from niels_gpt.files.messages import read_text
from niels_gpt.leak import LeakRules
from niels_gpt.pipeline import layout, sections
from niels_gpt.pipeline.yaml_files import ParamsError, Problem, explain, parse_yaml, with_defaults
from niels_gpt.splice.spans import SpanRules, check_doc_index

Weights = dict[str, float]


class Params(Section):
    """Contents of params.yaml."""

    model_config = ConfigDict(allow_inf_nan=True)  # weights are checked by their own rule

    seed: Annotated[Seed, "of everything random; a section may have a seed of its own"]
    model: sections.Model
    p_train: Annotated[Weights, "how often a training row comes from each source of text; 0 leaves it out"]
    p_val: Annotated[Weights, "what the loss during training is validated on"]
    train: sections.Pretraining
    sources: dict[str, sections.Source]
    p_sft: Annotated[Weights, "how often a fine-tuning row comes from each source of chats"]
    sft: sections.FineTuning
    base: sections.Base
    tokenizer: Annotated[sections.Byte | sections.SentencePiece | sections.Pretrained, Field(discriminator="kind")]
    duplicates: sections.Duplicates
    index: sections.Index
    parts: sections.Parts
    eval: EvalRules
    splice: sections.Splice
    memorize: sections.Memorize
    leak: LeakRules
    runtime: sections.Runtime = Field(default_factory=sections.Runtime)

    @property
    def texts(self) -> dict[str, sections.Source]:
        return {name: source for name, source in self.sources.items() if source.use == "text"}

    @property
    def chats(self) -> dict[str, sections.Source]:
        return {name: source for name, source in self.sources.items() if source.use == "chat"}


ParamsOnBase = create_model("ParamsOnBase", __base__=Params, model=(sections.ModelOnBase, ...))  # with the base's shape


def shape_of(raw: dict[str, Any]) -> type[Params]:
    """Return the schema of these values: another one if they name a base."""
    base = raw.get("base")
    return ParamsOnBase if isinstance(base, dict) and isinstance(base.get("from"), str) else Params


def complete(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a params.yaml with the defaults of keys that are left out; nothing is checked."""
    seed = raw.get("seed")
    valid = type(seed) is int and 0 <= seed < 2**63  # an invalid one is reported once, at the top
    filled: dict[str, Any] = with_defaults(raw, shape_of(raw), seed=seed if valid else 0)
    return filled if "seed" in raw else {key: value for key, value in filled.items() if key != "seed"}


def read_params(file: Path = layout.PARAMS) -> tuple[Params, dict[str, Any]]:
    """Return the validated parameters in a file, and the plain mapping they came from."""
    if not file.is_file():
        raise ValueError(f"there is no {file} here: run this in the project's folder")
    return parse_params(read_text(file), name=str(file))


def parse_params(text: str, *, name: str = str(layout.PARAMS)) -> tuple[Params, dict[str, Any]]:
    """Return the validated parameters, and the plain mapping they came from, with all defaults."""
    try:
        raw = parse_yaml(text, name=name)
        if not isinstance(raw, dict):
            raise ValueError(f"{name} holds no parameters: `niels-gpt preset sample` writes a set to start from")
    except ValueError as error:
        raise ParamsError([Problem((), str(error))], {}) from error
    shape, raw = shape_of(raw), complete(raw)
    try:
        params = shape.model_validate(raw)
    except ValidationError as error:
        found = [explain(problem, raw, shape=shape, name=name) for problem in error.errors(include_url=False)]
        raise ParamsError(found, raw) from error
    if problems := disagreements(params, name=name):
        raise ParamsError(problems, raw)
    return params, raw


# Rules between values. Each yields sentences that begin with the dotted name of a parameter; rules of stages that are
# left out do not count.


def disagreements(params: Params, *, name: str) -> list[Problem]:
    """Return all conflicts between values; `name` is that of the file."""
    rules = (_of_sources, _of_weights, _of_sections, _of_training, _of_splice)
    found = [sentence for rule in rules for sentence in rule(params)]
    return [Problem(tuple(said.split()[0].rstrip(":").split(".")), f"{name}: {said}") for said in found]


def _of_sources(params: Params) -> Iterator[str]:
    for name in params.sources:
        if not re.fullmatch(r"[a-z0-9_]+", name):
            yield f"sources: the name {name!r} must match [a-z0-9_]+: it becomes a folder and a stage"
    for (one, source), (name, other) in combinations(params.sources.items(), 2):
        if source.val_name == other.val_name:
            users = f"sources.{one} and sources.{name}"
            yield f"val_name {source.val_name!r} is used by {users}: each needs its own"
    learned = params.splice.dataset_name
    if params.texts and learned not in params.texts:
        known = sorted(params.texts)
        yield f"splice.dataset_name is {learned!r}, which is no source of text; there are: {known}"
    for name, source in params.sources.items():
        if source.load.stored and not params.runtime.stores.get(source.remote):
            yield (
                f"sources.{name}.load.stored is true, but runtime.stores has no place for {source.remote}: name one "
                "there"
            )
    # Each source is evaluated, and trained on unless its weight is 0, in windows.
    T = params.model.T
    for name, source in params.texts.items():
        for side, budget in source.budget.by_split().items():
            drawn = side == "val" or params.p_train.get(name) != 0
            if drawn and budget is not None and budget <= T:
                key = f"sources.{name}.budget.max_{side}_tokens"
                yield f"{key} is {budget}, which holds no window of model.T+1 = {T + 1} tokens: raise it"
    yield from _torn_dialogues(params)


def _torn_dialogues(params: Params) -> Iterator[str]:
    """Yield sources that read the same dialogues as text and as chats, but cut or split them differently.

    Dialogues held out in one would be trained on in the other.
    """
    for (text, one), (chat, other) in product(params.texts.items(), params.chats.items()):
        both = hasattr(one.load, "delimiter") and hasattr(other.load, "delimiter")
        if not both or os.path.realpath(one.input) != os.path.realpath(other.input):
            continue
        for key, differ in (
            ("load.delimiter", one.load.delimiter != other.load.delimiter),
            ("split", one.split != other.split),
        ):
            if differ:
                yield (
                    f"sources.{chat}.{key} is not that of sources.{text}, and both read {other.input}: give them the "
                    "same, or dialogues held out in one are trained on in the other"
                )


def _of_weights(params: Params) -> Iterator[str]:
    tuned = params.sft.run
    for table, weights, sources, used in (
        ("p_train", params.p_train, params.texts, True),
        ("p_val", params.p_val, params.texts, True),
        ("p_sft", params.p_sft, params.chats, tuned),
    ):
        if used and not sources:  # a rule of its own
            continue
        known = {key: weight for key, weight in weights.items() if key in sources}
        # The check stops at the first error, and unknown names come first, so known names are checked again.
        for part in (weights, known) if known and known != weights else (weights,):
            if used or any(part.values()):
                yield from _refusal(mix_probabilities, part, sources, name=table)
        missing = sorted(set(sources) - set(weights))
        if used and missing and table != "p_val":
            yield f"{table} has no weight for {missing}: give each one (0 excludes a source from sampling)"


def _of_sections(params: Params) -> Iterator[str]:
    # Private text must not end up among public text.
    places = {
        name: f"{(place if '://' in place else os.path.realpath(place)).rstrip('/')}/"
        for name, place in params.runtime.stores.items()
        if place
    }
    for (name, place), (other, outer) in permutations(places.items(), 2):
        if place.startswith(outer):
            yield f"runtime.stores: {name} lies in {other} ({outer}): give each remote a store of its own"
    if not params.texts:
        yield "sources: none has `use: text`: pretraining needs at least one"
    elif not params.chats and params.sft.run:
        yield "sources: none has `use: chat`: sft needs at least one, or set sft.run to false"
    kind, based = params.tokenizer.kind, params.base.name is not None
    if based and kind != "hf":
        yield (
            f"tokenizer.kind: {kind} does not go with a base, which has its own tokenizer: use kind: hf, corpus: "
            "models/base"
        )
    if kind == "hf" and not based:
        yield "tokenizer.kind: hf is the tokenizer of a base, and base.from is null: name a base, or use another kind"
    if not based:  # else as the base has them
        shape = params.model.model_dump(include={"C", "H", "head_dim"})
        yield from (f"model.H: {text}" for text in _refusal(ModelConfig.from_section, shape))
    for key, run, settings in (("memorize", params.memorize.run, params.memorize), ("leak", True, params.leak)):
        chunk_size, T = settings.chunk_size, params.model.T
        if run and settings.prompt_tokens >= chunk_size:
            yield f"{key}.prompt_tokens: {settings.prompt_tokens} must be less than chunk_size={chunk_size}"
        if run and chunk_size > T:
            yield f"{key}.chunk_size: {chunk_size} must fit into model.T={T}"


def _of_training(params: Params) -> Iterator[str]:
    nproc, L = params.runtime.nproc, getattr(params.model, "L", None)
    for key, run, settings in (
        ("train", True, params.train),
        ("sft", params.sft.run, params.sft),
        ("splice.train", params.splice.run, params.splice.train),
    ):
        if not run:
            continue
        if settings.warmup_steps > settings.total_steps:
            yield (
                f"{key}.warmup_steps: {settings.warmup_steps} is more than total_steps={settings.total_steps}, so that "
                "the learning rate never comes near base_lr: lower it, or raise total_steps"
            )
        if settings.min_lr > settings.base_lr:
            yield (
                f"{key}.min_lr: {settings.min_lr} is above base_lr={settings.base_lr}, from which it is to fall: lower "
                "it, or raise base_lr"
            )
        if settings.freeze_blocks and L is not None and settings.freeze_blocks >= L:
            yield (
                f"{key}.freeze_blocks: {settings.freeze_blocks} leaves no block to train, since model.L is {L}: lower "
                "it"
            )
        if nproc > settings.B:
            yield f"runtime.nproc: {nproc} processes share B={settings.B} rows per step: lower it, or raise B"


def _of_splice(params: Params) -> Iterator[str]:
    splice, memorize = params.splice, params.memorize
    if not splice.run:
        if memorize.run:
            yield (
                "memorize.run: splice.run is false, and what splice learns is what memorize measures: set this to "
                "false, too"
            )
        return
    yield from (f"splice.spans: {text}" for text in _refusal(SpanRules, S=2, **splice.spans.model_dump()))
    chosen = _refusal(check_doc_index, splice.num_docs, splice.doc_index)
    yield from (f"splice.doc_index: {text}" for text in chosen)
    longest, shortest = splice.max_doc_length, splice.min_doc_length
    if longest is not None and shortest is not None and longest < shortest:
        yield (
            f"splice.max_doc_length: {longest} is less than min_doc_length={shortest}: no document is both, so raise it"
        )
    if memorize.run and longest is not None and memorize.chunk_size > longest:
        yield (
            f"memorize.chunk_size: {memorize.chunk_size} is more than splice.max_doc_length={longest}, so that no "
            "document holds a window: lower it, or raise that"
        )
    if splice.restrict_to_training_subset and params.p_train.get(splice.dataset_name) == 0:
        yield (
            f"splice.restrict_to_training_subset: it is true, but p_train.{splice.dataset_name} is 0, so that the "
            "model is trained on nothing of it: give it a weight, or set this to false"
        )


def _refusal(check: Callable[..., object], *values: Any, **named: Any) -> Iterator[str]:
    """Yield the message of the ValueError that a check raises, if it raises one."""
    try:
        check(*values, **named)
    except ValueError as error:
        yield str(error)
