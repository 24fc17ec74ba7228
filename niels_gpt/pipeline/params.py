"""The shape of params.yaml: every key, its type and its range. What is used is what is written: no key
has a default but those of a source of one's own text, which is two lines.

`runtime` is the one section that no stage declares to DVC: nothing in it may change a result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from niels_gpt.config import ModelConfig
from niels_gpt.files.sentences import read_text
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.mistakes import ParamsError, Problem, disagreements, explain
from niels_gpt.pipeline.sections import Section
from niels_gpt.pipeline.sources import ChatSource, Source
from niels_gpt.pipeline.yaml12 import parse_with_repeats

Count = Annotated[int, Field(ge=1, lt=2**63)]
Budget = Annotated[int, Field(ge=1, lt=2**63)] | None
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class Byte(Section):
    kind: Literal["byte"]
    corpus: Literal["data/no-input.md"]  # nothing to train on


class SentencePiece(Section):
    kind: Literal["sentencepiece"]
    corpus: Literal["cache/split"]
    vocab_size: Annotated[int, Field(ge=262, le=2**16)]  # every byte, the chat tokens; 16-bit ids
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
    rope_theta: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    @field_validator("H")
    @classmethod
    def _divides_the_width(cls, H: int, info: ValidationInfo) -> int:
        if "C" in info.data:
            ModelConfig(C=info.data["C"], H=H)
        return H

    def config(self, *, V: int) -> ModelConfig:
        return ModelConfig(V=V, **self.model_dump())


class Schedule(Section):
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
    precision: Literal["float32", "bf16"]
    optimizer: Literal["adamw", "muon"]


class Train(Schedule):
    """Validated on so many random batches; splice has a fixed grid of spans instead."""

    eval_steps: Count


class PretrainTrain(Train):
    document_mask: bool


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


class Splice(Section):
    dataset_name: str
    num_docs: Count
    min_doc_length: Budget
    max_doc_length: Budget
    doc_select_mode: Literal["first", "longest", "shortest", "random"]
    doc_index: Annotated[int, Field(ge=0)] | None
    strict_num_docs: bool
    restrict_to_training_subset: bool
    spans: Spans
    balance_mode: Literal["by_temperature", "by_coverage", "by_document"]
    balance_tau: Annotated[float, Field(allow_inf_nan=False)]
    epoch_length: Budget
    shuffle: bool
    train: Schedule


class Memorize(Section):
    chunk_size: Annotated[int, Field(ge=2)]
    prompt_tokens: Count
    cursor_inc_tokens: Count
    top_k: Budget
    B: Count

    @field_validator("prompt_tokens")
    @classmethod
    def _shorter_than_the_window(cls, prompt_tokens: int, info: ValidationInfo) -> int:
        if prompt_tokens >= info.data.get("chunk_size", float("inf")):
            raise ValueError(f"{prompt_tokens} must be less than chunk_size={info.data['chunk_size']}")
        return prompt_tokens


class Runtime(Section):
    device: str
    hub_patience_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    threads: Annotated[int, Field(ge=0)]
    nproc: Count
    compile: Literal["auto", True, False]
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


def read_params(file: Path = layout.PARAMS) -> tuple[Params, dict[str, Any]]:
    """The validated parameters in a file, and the plain mapping they came from."""
    if not file.is_file():
        raise ValueError(f"there is no {file} here: run this in the project's folder")
    return parse_params(read_text(file), name=str(file))


def parse_params(text: str, *, name: str = str(layout.PARAMS)) -> tuple[Params, dict[str, Any]]:
    """The validated parameters, and the plain mapping they came from (which is what DVC records)."""
    try:
        raw, repeated = parse_with_repeats(text, name=name)
    except ValueError as error:
        raise ParamsError([Problem((), str(error))], {}) from error
    if not isinstance(raw, dict):
        sentence = f"{name} holds no parameters: `niels-gpt preset sample` writes a set to start from"
        raise ParamsError([Problem((), sentence)], {})
    problems = [Problem(("",), repeat) for repeat in repeated]  # at no key that another reader would miss
    params: Params | None = None
    try:
        params = Params.model_validate(raw)
    except ValidationError as error:
        problems += [explain(problem, raw, shape=Params, name=name) for problem in error.errors(include_url=False)]
    problems += disagreements(raw, name=name)
    if params is None or problems:
        raise ParamsError(problems, raw)
    return params, raw
