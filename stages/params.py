"""The shape of params.yaml: every key, its type and its range. What is used is what is written: no key
has a default but those of a source of one's own text, which is two lines.

`runtime` is the one section that no stage declares to DVC: nothing in it may change a result.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from niels_gpt.config import ModelConfig
from niels_gpt.mix import mix_probabilities
from stages.yaml12 import parse_yaml

PARAMS_FILE = Path("params.yaml")
_SOURCE_NAME = re.compile(r"[a-z0-9_]+")

Count = Annotated[int, Field(ge=1)]
Budget = Annotated[int, Field(ge=1)] | None
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Load(Section):
    """What every loader may read from: a hub dataset, or (null) the file or folder in the source's `input`."""

    dataset: str | None
    revision: str | None


class StreamedLoad(Load):
    """A dataset too large to take whole: `max_documents`, or the source's token budgets, end the stream."""

    split: str
    shuffle_buffer: Annotated[int, Field(ge=1)] | None
    seed: Seed
    max_documents: Budget
    bytes_per_token: Annotated[float, Field(ge=1, allow_inf_nan=False)]


class WikitextLoad(Load):
    kind: Literal["wikitext"]
    config: str


class FinewebEduLoad(StreamedLoad):
    kind: Literal["fineweb_edu"]
    config: str


class GutenbergLoad(StreamedLoad):
    kind: Literal["gutenberg"]


class RoamLoad(Section):
    kind: Literal["roam"]


class PrimerLoad(Section):
    kind: Literal["primer"]
    delimiter: Annotated[str, Field(min_length=1)]


class TextLoad(Section):
    """`glob`: which files of the folder; `front_matter: false` drops the YAML at a file's head; `held_out_tail`: so
    much of the end of every document is held out (with `split: {by: given}`)."""

    kind: Literal["text"]
    glob: str | None = None
    front_matter: bool = True
    held_out_tail: Fraction = 0.0


class DollyLoad(Load):
    kind: Literal["dolly"]
    include_system: bool
    seed: Seed
    max_documents: Budget


class Oasst1Load(Load):
    kind: Literal["oasst1"]
    english_only: bool
    max_messages: Annotated[int, Field(ge=2)]
    seed: Seed
    max_trees: Budget


class OwnChatsLoad(Section):
    kind: Literal["chat"]


class GivenSplit(Section):
    by: Literal["given"]


class DocumentSplit(Section):
    by: Literal["document"]
    val_frac: Fraction
    seed: Seed


class TreeSplit(Section):
    by: Literal["tree"]
    val_frac: Fraction
    seed: Seed


class SourceShard(Section):
    max_train_tokens: Budget
    max_val_tokens: Budget


class AnySource(Section):
    input: Annotated[str, Field(min_length=1)]
    remote: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
    val_name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]


class Source(AnySource):
    load: Annotated[
        WikitextLoad | FinewebEduLoad | GutenbergLoad | RoamLoad | PrimerLoad | TextLoad, Field(discriminator="kind")
    ]
    split: Annotated[GivenSplit | DocumentSplit, Field(discriminator="by")]
    shard: SourceShard

    @model_validator(mode="after")
    def _split_fits_the_loader(self) -> Self:
        tail, given = isinstance(self.load, TextLoad) and self.load.held_out_tail > 0, self.split.by == "given"
        if tail and not given:
            raise ValueError("held_out_tail already splits every document: it goes with split {by: given}")
        if given and not tail and not isinstance(self.load, WikitextLoad):
            raise ValueError(f"{self.load.kind} brings no split of its own: use split {{by: document, val_frac, seed}}")
        return self


class ChatSource(AnySource):
    load: Annotated[DollyLoad | Oasst1Load | OwnChatsLoad, Field(discriminator="kind")]
    split: Annotated[DocumentSplit | TreeSplit, Field(discriminator="by")]


class Byte(Section):
    kind: Literal["byte"]
    corpus: Literal["stages/tokenizer.py"]  # nothing to train on


class SentencePiece(Section):
    kind: Literal["sentencepiece"]
    corpus: Literal["cache/split"]
    vocab_size: Count
    sample_bytes: Count
    seed: Seed


class Shard(Section):
    shard_bytes: Annotated[int, Field(ge=2, multiple_of=2)]


class Model(Section):
    T: Count
    C: Count
    L: Count
    H: Count
    d_ff: Count
    dropout: Fraction
    rope_theta: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        self.config(V=1)
        return self

    def config(self, *, V: int) -> ModelConfig:
        return ModelConfig(V=V, **self.model_dump())


class Train(Section):
    seed: Seed
    total_steps: Count
    B: Count
    base_lr: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    min_lr: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    warmup_steps: Annotated[int, Field(ge=0)]
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    beta1: Fraction
    beta2: Fraction
    grad_clip: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    eval_every: Count
    eval_steps: Count
    precision: Literal["float32", "bf16"]
    optimizer: Literal["adamw", "muon"]


class PretrainTrain(Train):
    document_mask: bool

    def document_end(self, eot: int) -> int | None:
        """The token between documents that must not see each other; None where they may."""
        return eot if self.document_mask else None


class Eval(Section):
    B: Count
    max_tokens: Budget
    prompts: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    questions: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    max_new_tokens: Count
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    top_k: Annotated[int, Field(ge=1)] | None
    seed: Seed


class Spans(Section):
    """Which spans of a document are placed where in a frame."""

    mode: Literal["splice", "slide"]
    content_start_mode: Literal["anchor_start", "slide_within", "cyclic_roll", "coverage_balanced"]
    content_length: Annotated[int, Field(ge=2)] | None
    content_stride: Count
    offset_stride: Count
    offset_bound: Literal["tight", "loose"]
    min_copy_len: Annotated[int, Field(ge=2)]
    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    adaptive_k: bool
    include_tail: bool
    suffix_starts: bool
    offset_jitter: Annotated[int, Field(ge=0)]
    jitter_mode: Literal["uniform", "low_discrepancy"]


class TrainingSubset(Section):
    max_train_batches: Budget
    initial_batch_size: Budget
    num_validation_sequences: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _batches_have_a_size(self) -> Self:
        if self.max_train_batches is not None and self.initial_batch_size is None:
            raise ValueError("max_train_batches counts batches of initial_batch_size sequences: give that, too")
        return self


class Splice(Section):
    dataset_name: str
    num_docs: Count
    min_doc_length: Budget
    max_doc_length: Budget
    doc_select_mode: Literal["first", "longest", "shortest", "random"]
    doc_index: Annotated[int, Field(ge=0)] | None
    strict_num_docs: bool
    restrict_to_training_subset: bool
    training_subset: TrainingSubset
    spans: Spans
    balance_mode: Literal["by_temperature", "by_coverage", "by_document"]
    balance_tau: Annotated[float, Field(allow_inf_nan=False)]
    epoch_length: Budget
    shuffle: bool
    train: Train

    @model_validator(mode="after")
    def _subset_is_a_head(self) -> Self:
        if self.restrict_to_training_subset and self.shuffle:
            raise ValueError(
                "restrict_to_training_subset needs shuffle: false (shuffled, the head of a corpus is not what is read)"
            )
        return self


class Memorize(Section):
    chunk_size: Annotated[int, Field(ge=2)]
    prompt_tokens: Count
    cursor_inc_tokens: Count
    top_k: Budget
    B: Count

    @model_validator(mode="after")
    def _prompt_is_shorter(self) -> Self:
        if self.prompt_tokens >= self.chunk_size:
            raise ValueError(f"prompt_tokens={self.prompt_tokens} must be shorter than chunk_size={self.chunk_size}")
        return self


class Runtime(Section):
    device: str
    hub_patience_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    threads: Annotated[int, Field(ge=0)]
    nproc: Count
    compile: Literal["auto"] | bool
    micro_batch_tokens: Budget
    deterministic: bool
    log_every: Count
    checkpoint_every: Count


class Params(Section):
    sources: dict[str, Source]
    chats: dict[str, ChatSource]
    tokenizer: Annotated[Byte | SentencePiece, Field(discriminator="kind")]
    shard: Shard
    p_train: dict[str, float]
    p_val: dict[str, float]
    p_sft: dict[str, float]
    model: Model
    train: PretrainTrain
    sft: Train
    eval: Eval
    splice: Splice
    memorize: Memorize
    runtime: Runtime

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        bad = [name for name in (*self.sources, *self.chats) if not _SOURCE_NAME.fullmatch(name)]
        if bad:
            raise ValueError(f"source names {bad} must match [a-z0-9_]+: they become folders and words of a command")
        if not self.sources or not self.chats:
            raise ValueError("sources or chats is empty: each needs at least one")
        both = sorted(set(self.sources) & set(self.chats))
        if both:
            raise ValueError(f"{both} stand under sources and under chats: a name may be used once")
        mix_probabilities(self.p_train, self.sources, name="p_train")
        mix_probabilities(self.p_val, self.sources, name="p_val")
        mix_probabilities(self.p_sft, self.chats, name="p_sft")
        for table, weights, names in (("p_train", self.p_train, self.sources), ("p_sft", self.p_sft, self.chats)):
            missing = sorted(set(names) - set(weights))
            if missing:
                raise ValueError(
                    f"{table} has no weight for {missing}: give each one (0 leaves a source out of the draw)"
                )
        val_names = [source.val_name for source in (*self.sources.values(), *self.chats.values())]
        twice = sorted({name for name in val_names if val_names.count(name) > 1})
        if twice:
            raise ValueError(f"val_name {twice} is used by more than one source: each needs its own")
        return self


def parse_params(text: str) -> tuple[Params, dict[str, Any]]:
    """The validated parameters, and the plain mapping they came from (which is what DVC records)."""
    raw = parse_yaml(text, name=str(PARAMS_FILE))
    if not isinstance(raw, dict):
        raise ValueError(f"{PARAMS_FILE} holds no parameters: `niels-gpt preset sample` writes a set to start from")
    try:
        return Params.model_validate(raw), raw
    except ValidationError as error:
        raise ValueError("; ".join(_explain(problem) for problem in error.errors())) from error


def _explain(problem: Any) -> str:
    """One sentence for one of pydantic's findings: where, what, and what would be right."""
    path = _written_path(problem["loc"])
    where = f"{PARAMS_FILE}: {'.'.join(path)}" if path else str(PARAMS_FILE)
    match problem["type"]:
        case "extra_forbidden":
            known = _known_keys(path[:-1])
            if path[-1] in known:
                return f"{where} goes with another kind, not with this one: leave it out"
            near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
            return f"{where} is not a parameter; {hint}"
        case "missing":
            return f"{where} is missing: every key must be written out"
        case "value_error":
            return f"{where}: {problem['ctx']['error']}"
        case "union_tag_invalid" | "union_tag_not_found":
            key = problem["ctx"]["discriminator"].strip("'")
            tags = problem["ctx"].get("expected_tags")
            return f"{where}: {key} must be one of {tags}" if tags else f"{where}.{key} is missing: it says which kind"
    got = problem["input"]
    return f"{where} is {got!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def _written_path(loc: tuple[int | str, ...]) -> list[str]:
    """The path as the user wrote it. Pydantic's names the chosen member of a union too: sources.a.load.roam.glob."""
    path = [str(part) for part in loc]
    if path[:1] in (["sources"], ["chats"]) and path[2:3] in (["load"], ["split"]):
        del path[3:4]
    if path[:1] == ["tokenizer"]:
        del path[1:2]
    return path


_SOURCE_SECTIONS: dict[str, dict[tuple[str, ...], tuple[type[Section], ...]]] = {
    "sources": {
        (): (Source,),
        ("load",): (WikitextLoad, FinewebEduLoad, GutenbergLoad, RoamLoad, PrimerLoad, TextLoad),
        ("split",): (GivenSplit, DocumentSplit),
        ("shard",): (SourceShard,),
    },
    "chats": {
        (): (ChatSource,),
        ("load",): (DollyLoad, Oasst1Load, OwnChatsLoad),
        ("split",): (DocumentSplit, TreeSplit),
    },
}


def _known_keys(path: list[str]) -> list[str]:
    """Keys that may stand at a place, for a hint."""
    sections: tuple[Any, ...] = (Params,)
    if path:
        tables = _SOURCE_SECTIONS.get(path[0])
        plain = (Byte, SentencePiece) if path == ["tokenizer"] else (Params.model_fields[path[0]].annotation,)
        sections = tables[tuple(path[2:])] if tables else plain
    return sorted({key for section in sections for key in section.model_fields})
