"""Schema of params.yaml: every key with its type and range; and the table of all parameters.

All values are explicit: keys are required, except settings of a source kind that have a default, and options added
later, whose defaults keep the meaning of an older params.yaml.

`runtime` is the one section that no stage declares to DVC, so nothing in it may change a result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from niels_gpt.config import (
    INT64,
    MODEL_OPTIONS,
    Count,
    Fraction,
    Heads,
    ModelConfig,
    NewTokens,
    Rows,
    Seed,
    TrainConfig,
)
from niels_gpt.data.corpus.split import DuplicateRules
from niels_gpt.device import check_device_name
from niels_gpt.files.messages import read_text
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.base_section import Base, ModelOnBase
from niels_gpt.pipeline.rules import disagreements
from niels_gpt.pipeline.sources import Section, Source, section
from niels_gpt.pipeline.yaml_files import DuplicateKey, ParamsError, Problem, explain, members, parse_yaml
from niels_gpt.splice.selection import SelectMode
from niels_gpt.splice.spans import BalanceMode, SpanRules
from niels_gpt.tokenizer.training import VocabSize

_HEAD = """# Parameters

Every key of params.yaml, as `python -m niels_gpt.pipeline.params` prints it. `NAME` stands for a name of your own,
`sample` for the value in presets/sample.yaml, or, of a key that may be left out and is so there, for what it then is.
What is not allowed is refused, by name, before anything runs; `niels-gpt doctor --params` lists all errors at once.
"""
_KINDS = {int: "integer", float: "number", bool: "true or false", str: "text", list: "list", NoneType: "null"}
_BOUNDS = {Ge: ">=", Gt: ">", Le: "<=", Lt: "<", MinLen: "of length >="}
_UNSAID = (INT64, Lt(math.inf))  # limits too large to mention
_CHATS_MOVED = (
    "chats are sources now: move its entries to sources and give each `use: chat` and a `budget`, the others `use: "
    "text`; move `stored` into `load`; set a tokenizer.corpus of cache/split to cache/split/text; or start anew with "
    "`niels-gpt preset sample`"
)
_COLUMNS = "| parameter | allowed | sample | what it does |\n|---|---|---|---|\n"


def list_parameters(shape: type[BaseModel], sample: dict[str, Any]) -> str:
    """Return docs/parameters.md: a table per section, or per kind if a section comes in several."""
    tables: dict[str, list[str]] = {}
    for name, field in shape.__pydantic_fields__.items():
        tables[f"## {name}"] = []
        _collect((name,), field, sample.get(name), title=f"## {name}", tables=tables)
    return "\n".join([_HEAD, *(_table(title, rows) for title, rows in tables.items())])


def _table(title: str, rows: list[str]) -> str:
    if rows:
        return f"{title}\n\n{_COLUMNS}{''.join(rows)}"
    return f"{title}\n" if title.startswith("## ") else f"{title}\n\nNothing else.\n"


def _collect(
    path: tuple[str, ...],
    field: FieldInfo,
    value: Any,
    *,
    title: str,
    tables: dict[str, list[str]],
    above: dict[str, FieldInfo] | None = None,
) -> None:
    """Add a row for each parameter at or below a path to the table it belongs to.

    A `value` of `...` means that there is none; `above` has the enclosing sections.
    """
    chain = {**(above or {}), path[-1]: field}
    kinds = members(field.annotation)
    if get_origin(kinds[0]) is dict:
        path, value, kinds = (*path, "NAME"), ..., members(get_args(kinds[0])[1])
    if not hasattr(kinds[0], "__pydantic_fields__"):
        tables[title].append(_row(path, field, value, said=_said(chain)))
        return
    tag = str(field.discriminator) if field.discriminator else ""
    for kind in kinds:
        keys, values = kind.__pydantic_fields__, value if isinstance(value, dict) else {}
        if tag:
            words = get_args(keys[tag].annotation)
            title = f"### {'.'.join(path)} of {tag} {' or '.join(words)}"
            values = values if values.get(tag) in words else {}
            tables[title] = []
        for key in keys:
            if key != tag:
                _collect((*path, key), keys[key], values.get(key, ...), title=title, tables=tables, above=chain)


def _said(chain: dict[str, FieldInfo]) -> str:
    """Return the help texts of all enclosing sections, outermost first, and which key is optional."""
    notes = [note for field in chain.values() for note in field.metadata if isinstance(note, str)]
    optional = [key for key, field in chain.items() if not field.is_required()]
    return ": ".join(notes) + (f" ({optional[0]} may be left out)" if optional else "")


def _row(path: tuple[str, ...], field: FieldInfo, value: Any, *, said: str) -> str:
    kind = get_args(field.annotation)[1] if path[-1] == "NAME" else field.annotation
    allowed = allowed_values(Annotated[(kind, *field.metadata)] if field.metadata else kind)
    sample = "" if value is ... else f"`{json.dumps(value, ensure_ascii=False)}`"
    return f"| `{'.'.join(path)}` | {allowed} | {sample} | {said} |\n"


def allowed_values(annotation: Any) -> str:
    """Return a description of what an annotation allows: "integer >= 1, or null"."""
    kind, *notes = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if get_origin(kind) is Literal:
        choices = [str(choice).lower() if isinstance(choice, bool) else choice for choice in get_args(kind)]
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if len(members(kind)) > 1:
        return ", or ".join(map(allowed_values, get_args(kind)))
    bounds = [
        f"{_BOUNDS[type(note)]} {astuple(note)[0]}" for note in notes if type(note) in _BOUNDS and note not in _UNSAID
    ]
    return f"{_KINDS.get(get_origin(kind) or kind, 'table')} {' and '.join(bounds)}".strip()


Budget = Count | None
Texts = Annotated[list[Annotated[str, MinLen(1)]], MinLen(1)]


class Byte(Section):
    """Byte tokenizer: 256 byte values and four chat tokens."""

    kind: Literal["byte"]
    corpus: Annotated[Literal["data/no-input.md"], "what DVC watches: bytes need no text to train on"]


class SentencePiece(Section):
    """SentencePiece tokenizer, trained on training rows; it also has every byte and the four chat tokens."""

    kind: Literal["sentencepiece"]
    corpus: Annotated[Literal["cache/split/text"], "what DVC watches: the splits, and through them the texts"]
    vocab_size: Annotated[VocabSize, "pieces, bytes and chat tokens together"]
    sample_bytes: Annotated[Count, "text to train on, at the most"]
    seed: Annotated[Seed, "of the choice of that text"]
    min_documents: Annotated[
        Count, "no entry tells a word in fewer private documents and in no public source; 1: any word may be an entry"
    ] = 5


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
    Model = section(ModelConfig, without={"V", "H"}, optional=MODEL_OPTIONS, base=ModelSection)  # V: by the tokenizer
    _MIX = {"p_train", "p_val"}  # separate sections
    _RECIPE = {"schedule", "flat", "lr_scale", "decay_scale", "momentum_warmup", "windows", "freeze_blocks"}
    Pretraining = section(TrainConfig, without=_MIX, optional=_RECIPE)
    FineTuning = section(TrainConfig, without=_MIX | {"document_mask", "windows"}, optional=_RECIPE, base=TuningSection)
    _UNASKED = _MIX | {"document_mask", "eval_steps", "windows"}  # splice validates on a fixed grid
    Further = section(TrainConfig, without=_UNASKED, optional=_RECIPE, base=FurtherSection)
    Spans = section(SpanRules, without={"S"})
    Duplicates = section(DuplicateRules)


class Eval(Section):
    B: Annotated[Rows, "rows scored at once"]
    max_tokens: Annotated[Budget, "held-out tokens scored of a source, spread evenly; null: all"]
    prompts: Annotated[Texts, "first words of the samples in metrics/samples.md"]
    questions: Annotated[Texts, "what the fine-tuned model is asked there"]
    max_new_tokens: Annotated[NewTokens, "the longest sample, in tokens"]
    temperature: Annotated[float, Ge(0), "sampling temperature; 0 is greedy"]
    top_k: Annotated[Budget, "sample from the k most probable tokens; null: from all"]
    seed: Annotated[Seed, "of the samples"]


class Splice(Section):
    run: Annotated[bool, _RUN] = True
    dataset_name: Annotated[str, "source of the documents to learn by heart"]
    num_docs: Annotated[Count, "documents"]
    min_doc_length: Annotated[Budget, "shortest document to choose, in tokens"]
    max_doc_length: Annotated[Budget, "longest document to choose, in tokens"]
    doc_select_mode: Annotated[SelectMode, "which of those of allowed length"]
    doc_index: Annotated[Annotated[int, Ge(0), INT64] | None, "one document by number, for num_docs: 1"]
    strict_num_docs: Annotated[bool, "false fills up with the longest where too few are of that length"]
    restrict_to_training_subset: Annotated[
        bool, "true: only documents that pretraining draws from, within the source's budget.max_train_tokens"
    ]
    spans: Spans
    balance_mode: Annotated[BalanceMode, "shares of the documents: by length to the power of tau, by length, equal"]
    balance_tau: Annotated[float, "the power in by_temperature"]
    # The order of an epoch is an array in memory, 8 bytes per example.
    epoch_length: Annotated[Annotated[int, Ge(1), Le(10**8)] | None, "examples an epoch; null: every span once"]
    shuffle: Annotated[bool, "another order in every epoch"]
    train: Further


class Passages(Section):
    chunk_size: Annotated[int, Ge(2), INT64, "tokens of a passage; at most model.T"]
    prompt_tokens: Annotated[Count, "of these, the first are given; fewer than chunk_size"]


class Memorize(Passages):
    """Settings of P(z), the probability that a passage is continued verbatim, given its first tokens."""

    run: Annotated[bool, _RUN] = True
    cursor_inc_tokens: Annotated[Count, "tokens from one passage to the next"]
    top_k: Annotated[Budget, "null: the full softmax; 40 counts only what a sampler with top-k 40 could write"]
    B: Annotated[Rows, "passages scored at once"]


class Leak(Passages):
    """Settings of the extraction of private passages from the final models."""

    max_passages: Annotated[Budget, "of a source's train documents, and of its held-out ones; null: all"]
    seed: Annotated[Seed, "of the choice of documents, of the bootstrap, and of canaries"]
    B: Annotated[Rows, "passages scored at once"]
    # Each canary is ranked among 4,096 sentences, so 1,000 take as long as scoring four million.
    canaries: Annotated[int, Ge(0), Le(1000), "sentences to plant in a copy of the run, which is trained for it"]


class Runtime(Section):
    """Execution settings of a run; beyond rounding, none of them changes the result."""

    device: Annotated[str, AfterValidator(check_device_name), "auto (cuda, then mps, then cpu), cpu, mps, cuda, cuda:1"]
    hub_patience_s: Annotated[float, Gt(0), "seconds without a row after which loading from the hub gives up"]
    threads: Annotated[int, Ge(0), Le(1024), "CPU threads; 0 takes all cores"]
    engine: Annotated[Literal["local", "ray"], "who works on parts: processes of this machine, or a Ray cluster"]
    workers: Annotated[int, Ge(0), Le(1024), "parts worked on at once; 0: as many as there are cores"]
    ray_address: Annotated[str | None, "of the cluster's head; null starts one on this machine"]
    stores: Annotated[
        dict[str, str | None],
        "by remote, where the parts of stored sources lie: a folder, or a URL such as s3://bucket/folder",
    ]
    nproc: Annotated[int, Ge(1), Le(1024), "processes that train together, on each host; several GPUs need as many"]
    compile: Annotated[Literal["auto", True, False], "auto compiles the model for a GPU, true also for a CPU"]
    micro_batch_tokens: Annotated[
        Budget, "gradient accumulation: most tokens through the model at once; null: the whole batch"
    ]
    deterministic: Annotated[bool, "on a GPU, equal runs to the bit; costs 6% of a step where T is above 256"]
    log_every: Annotated[Count, "steps between lines of the log"]
    checkpoint_every: Annotated[Count, "steps between checkpoints that an interrupted training goes on from"]


Weights = dict[str, float]


class Params(Section):
    """Contents of params.yaml."""

    model_config = ConfigDict(allow_inf_nan=True)  # weights are checked by their own rule

    sources: dict[str, Source]
    duplicates: Duplicates
    base: Base
    tokenizer: Annotated[Byte | SentencePiece | Pretrained, Field(discriminator="kind")]
    parts: Parts
    p_train: Annotated[Weights, "how often a training row comes from each source; 0 leaves it out"]
    p_val: Annotated[Weights, "what the loss during training is validated on"]
    p_sft: Annotated[Weights, "how often a fine-tuning row comes from each source of chats"]
    model: Model
    train: Pretraining
    sft: FineTuning
    eval: Eval
    splice: Splice
    memorize: Memorize
    leak: Leak
    runtime: Runtime

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


def read_params(file: Path = layout.PARAMS) -> tuple[Params, dict[str, Any]]:
    """Return the validated parameters in a file, and the plain mapping they came from."""
    if not file.is_file():
        raise ValueError(f"there is no {file} here: run this in the project's folder")
    return parse_params(read_text(file), name=str(file))


def parse_params(text: str, *, name: str = str(layout.PARAMS)) -> tuple[Params, dict[str, Any]]:
    """Return the validated parameters, and the plain mapping they came from, which is what DVC records."""
    problems: list[Problem] = []
    try:
        raw = parse_yaml(text, name=name)
    except DuplicateKey as error:
        problems.append(Problem(("",), str(error)))  # at no existing key, so that all other checks still run
        raw = parse_yaml(text, name=name, allow_duplicates=True)
    except ValueError as error:
        raise ParamsError([Problem((), str(error))], {}) from error
    if not isinstance(raw, dict):
        sentence = f"{name} holds no parameters: `niels-gpt preset sample` writes a set to start from"
        raise ParamsError([Problem((), sentence)], {})
    if "chats" in raw:
        raise ParamsError([Problem(("chats",), f"{name}: {_CHATS_MOVED}")], raw)
    params: Params | None = None
    base = raw.get("base")
    shape = ParamsOnBase if isinstance(base, dict) and isinstance(base.get("from"), str) else Params
    try:
        params = shape.model_validate(raw)
    except ValidationError as error:
        problems += [explain(problem, raw, shape=shape, name=name) for problem in error.errors(include_url=False)]
    problems += disagreements(raw, name=name, wrong=[problem.path for problem in problems])
    if params is None or problems:
        raise ParamsError(problems, raw)
    return params, raw


if __name__ == "__main__":  # docs/parameters.md
    print(list_parameters(Params, read_params(layout.PRESETS / "sample.yaml")[0].model_dump()), end="")
