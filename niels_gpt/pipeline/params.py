"""Schema of params.yaml: every key with its type, range and default; and the table of all parameters.

Keys with a default may be left out. Defaults are those of the library: this module is not part of any stage's code
fingerprint, so only `runtime`, `run`, and values that mean "none" have theirs here. A key that dvc.yaml names has no
default, since DVC does not know it. A section without a `seed` has the seed at the top.

`runtime` is the one section that no stage declares to DVC, so nothing in it may change a result.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from niels_gpt.config import Count, Fraction, Heads, ModelConfig, Section, Seed, TrainConfig
from niels_gpt.data.corpus.split import DuplicateRules
from niels_gpt.device import check_device_name
from niels_gpt.eval import EvalRules
from niels_gpt.files.messages import read_text
from niels_gpt.leak import LeakRules, MemorizeRules
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.rules import disagreements
from niels_gpt.pipeline.sources import Base, ModelOnBase, Source, section
from niels_gpt.pipeline.yaml_files import ParamsError, Problem, completed, explain, parse_yaml
from niels_gpt.splice.spans import SelectionRules, SpanRules
from niels_gpt.tokenizer.training import SentencePieceRules


class Byte(Section):
    """Byte tokenizer: 256 byte values and four chat tokens."""

    kind: Literal["byte"]
    corpus: Annotated[Literal["data/no-input.md"], "what DVC watches: bytes need no text to train on"]


class SentencePiece(SentencePieceRules):
    """SentencePiece tokenizer, trained on training rows; it also has every byte and the four chat tokens."""

    kind: Literal["sentencepiece"]
    corpus: Annotated[Literal["cache/split/text"], "what DVC watches: the splits, and through them the texts"]


class Pretrained(Section):
    """Tokenizer of the base."""

    kind: Literal["hf"]
    corpus: Annotated[Literal["models/base"], "what DVC watches: the base brings its tokenizer"]


class Parts(Section):
    text_bytes: Annotated[Count, "text of a part, about: sources are loaded, encoded and kept in files of this size"]


class FurtherSection(Section):
    """Settings of a training stage that starts from pretrained weights."""

    dropout: Annotated[Fraction | None, "in place of model.dropout; null: as that"] = None


_RUN = "false leaves this stage out, and what it would write is empty"


class Index(Section):
    run: Annotated[bool, _RUN] = True


class TuningSection(FurtherSection):
    run: Annotated[bool, _RUN] = True


class ModelSection(Section):
    H: Annotated[Heads | None, "attention heads a block; divides C unless head_dim is given; null: C/head_dim"] = None

    def config(self, *, V: int) -> ModelConfig:
        """Return the model configuration for a vocabulary of `V` entries."""
        return ModelConfig.from_section(self.model_dump(), V=V)


if TYPE_CHECKING:  # sections have the fields of their dataclass, and pydantic's model_dump

    class _Section:
        model_dump: Callable[..., dict[str, Any]]

    class Model(_Section, ModelConfig):
        config: Callable[..., ModelConfig]

    class Schedule(_Section, TrainConfig): ...

    class Further(Schedule):
        dropout: float | None

    class Spans(_Section, SpanRules): ...

    class Duplicates(_Section, DuplicateRules): ...

    class FineTuning(Further):
        run: bool

    Pretraining = Schedule
else:
    _SIZES = {"T", "C", "L", "d_ff", "dropout"}
    Model = section(ModelConfig, without={"V", "H"}, required=_SIZES, base=ModelSection)  # V: by the tokenizer
    _MIX = {"p_train", "p_val"}  # separate sections
    Pretraining = section(TrainConfig, without=_MIX | {"replay"}, required={"document_mask"})
    FineTuning = section(TrainConfig, without=_MIX | {"document_mask", "teacher", "windows"}, base=TuningSection)
    _UNASKED = _MIX | {
        "document_mask",
        "eval_steps",
        "replay",
        "teacher",
        "windows",
    }  # splice validates on a fixed grid
    Further = section(TrainConfig, without=_UNASKED, base=FurtherSection)
    Spans = section(SpanRules, without={"S"})
    Duplicates = section(DuplicateRules)


class Splice(SelectionRules):
    run: Annotated[bool, _RUN] = True
    spans: Spans = Field(default_factory=dict, validate_default=True)
    train: Further


class Memorize(MemorizeRules):
    run: Annotated[bool, _RUN] = True


class Runtime(Section):
    """Execution settings of a run; beyond rounding, none of them changes the result."""

    device: Annotated[
        str, AfterValidator(check_device_name), "auto (cuda, then mps, then cpu), cpu, mps, cuda, cuda:1"
    ] = "auto"
    hub_patience_s: Annotated[float, Gt(0), "seconds without a row after which loading from the hub gives up"] = 120.0
    threads: Annotated[int, Ge(0), Le(1024), "CPU threads; 0 takes all cores"] = 0
    engine: Annotated[Literal["local", "ray"], "who works on parts: processes of this machine, or a Ray cluster"] = (
        "local"
    )
    workers: Annotated[int, Ge(0), Le(1024), "parts worked on at once; 0: as many as there are cores"] = 0
    ray_address: Annotated[str | None, "of the cluster's head; null starts one on this machine"] = None
    stores: Annotated[
        dict[str, str | None],
        "by remote, where the parts of stored sources lie: a folder, or a URL such as s3://bucket/folder",
    ] = Field(default_factory=dict)
    nproc: Annotated[int, Ge(1), Le(1024), "processes that train together, on each host; several GPUs need as many"] = 1
    compile: Annotated[Literal["auto", True, False], "auto compiles the model for a GPU, true also for a CPU"] = "auto"
    micro_batch_tokens: Annotated[
        Count | None, "gradient accumulation: most tokens through the model at once; null: the whole batch"
    ] = None
    deterministic: Annotated[bool, "on a GPU, equal runs to the bit; costs 6% of a step where T is above 256"] = True
    log_every: Annotated[Count, "steps between lines of the log"] = 100
    checkpoint_every: Annotated[Count, "steps between checkpoints, from which an interrupted training resumes"] = 200


Weights = dict[str, float]


class Params(Section):
    """Contents of params.yaml."""

    model_config = ConfigDict(allow_inf_nan=True)  # weights are checked by their own rule

    seed: Annotated[Seed, "of everything random; a section may have a seed of its own"]
    model: Model
    p_train: Annotated[Weights, "how often a training row comes from each source of text; 0 leaves it out"]
    p_val: Annotated[Weights, "what the loss during training is validated on"]
    train: Pretraining
    sources: dict[str, Source]
    p_sft: Annotated[Weights, "how often a fine-tuning row comes from each source of chats"]
    sft: FineTuning
    base: Base
    tokenizer: Annotated[Byte | SentencePiece | Pretrained, Field(discriminator="kind")]
    duplicates: Duplicates
    index: Index
    parts: Parts
    eval: EvalRules
    splice: Splice
    memorize: Memorize
    leak: LeakRules
    runtime: Runtime = Field(default_factory=Runtime)

    @property
    def texts(self) -> dict[str, Source]:
        return {name: source for name, source in self.sources.items() if source.use == "text"}

    @property
    def chats(self) -> dict[str, Source]:
        return {name: source for name, source in self.sources.items() if source.use == "chat"}


if TYPE_CHECKING:
    ParamsOnBase = Params
else:

    class ParamsOnBase(Params):
        """Contents of params.yaml where there is a base, whose shape the model has."""

        model: ModelOnBase


def shape_of(raw: dict[str, Any]) -> type[Params]:
    """Return the schema of these values: another one if they name a base."""
    base = raw.get("base")
    return ParamsOnBase if isinstance(base, dict) and isinstance(base.get("from"), str) else Params


def complete(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a params.yaml with the defaults of keys that are left out; nothing is checked."""
    return completed(raw, shape=shape_of(raw))


def read_params(file: Path = layout.PARAMS) -> tuple[Params, dict[str, Any]]:
    """Return the validated parameters in a file, and the plain mapping they came from."""
    if not file.is_file():
        raise ValueError(f"there is no {file} here: run this in the project's folder")
    return parse_params(read_text(file), name=str(file))


def parse_params(text: str, *, name: str = str(layout.PARAMS)) -> tuple[Params, dict[str, Any]]:
    """Return the validated parameters, and the plain mapping they came from, with all defaults."""
    try:
        raw = parse_yaml(text, name=name)
    except ValueError as error:
        raise ParamsError([Problem((), str(error))], {}) from error
    if not isinstance(raw, dict):
        sentence = f"{name} holds no parameters: `niels-gpt preset sample` writes a set to start from"
        raise ParamsError([Problem((), sentence)], {})
    shape, raw = shape_of(raw), complete(raw)
    try:
        params = shape.model_validate(raw)
    except ValidationError as error:
        found = [explain(problem, raw, shape=shape, name=name) for problem in error.errors(include_url=False)]
        raise ParamsError(found, raw) from error
    if problems := disagreements(params, name=name):
        raise ParamsError(problems, raw)
    return params, raw
