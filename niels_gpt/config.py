"""The two configurations that decide what a model is and how it was trained, and how a setting is checked.

A setting is a field of a frozen dataclass: `Annotated[type, range, "one line of help"]`. Its range stands there alone:
the constructor checks by it, a file of parameters is checked by it, and the list of all parameters is made of it.

Letters, here and everywhere: B batch, T context, C width, L blocks, H heads, D = C/H head width, V vocabulary.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass, field, fields, is_dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MinLen, MultipleOf

Renderer = Literal["transcript", "chat_tokens"]  # how chats are put to a model: as text, or with tokens of their own

INT64 = Lt(2**63)  # what a tensor or a file can hold
_UNSAID = (INT64, Lt(math.inf))  # limits that nobody comes near
Count = Annotated[int, Ge(1), INT64]
Seed = Annotated[int, Ge(0), INT64]
# Upper bounds lie beyond every run that a machine could end. They refuse a slip of the keyboard at once; a model or a
# batch within them may still be too large for this machine, which niels_gpt/train/memory.py finds.
Rows = Annotated[int, Ge(1), Le(2**20)]  # of a batch, whose indices are sampled at once
Width = Annotated[int, Ge(1), Le(2**18)]  # a square matrix of it has 256 GiB
Depth = Annotated[int, Ge(1), Le(1024)]  # every block is built in turn: 100,000 take an hour and more
Context = Annotated[int, Ge(1), Le(2**20)]  # tables of positions have T rows
Steps = Annotated[int, Ge(1), Le(10**8)]  # the loss of each is kept, and written with every checkpoint
Batches = Annotated[int, Ge(1), Le(10**6)]  # scored before training goes on
NewTokens = Annotated[int, Ge(1), Le(2**20)]  # written one after another
Fraction = Annotated[float, Ge(0), Lt(1)]

# What is noted in an annotation, and the types in it: how a value is tested, and how that is said.
_BOUNDS: dict[type, tuple[Callable[[Any, Any], bool], str]] = {
    Ge: (operator.ge, "at least"),
    Gt: (operator.gt, "above"),
    Le: (operator.le, "at most"),
    Lt: (operator.lt, "below"),
    MultipleOf: (lambda value, of: value % of == 0, "a multiple of"),
    MinLen: (lambda value, least: len(value) >= least, "not shorter than"),
}
_KINDS: dict[type, tuple[Callable[[Any], bool], str]] = {
    int: (lambda value: isinstance(value, Integral) and not isinstance(value, bool), "a whole number"),
    float: (lambda value: isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value), "a number"),
    bool: (lambda value: isinstance(value, bool), "true or false"),
    str: (lambda value: isinstance(value, str), "text"),
    list: (lambda value: isinstance(value, list), "a list"),
    NoneType: (lambda value: value is None, "null"),
}


def check_value(name: str, value: Any, annotation: Any) -> None:
    """Refuse a value that is not of its annotation's type, or outside its range."""
    if not _fits(value, annotation):
        raise ValueError(f"{name} must be {wanted(annotation)}, got {value!r}")


def check_fields(settings: Any) -> None:
    """Refuse the first value of a dataclass that its annotation does not allow."""
    for name, annotation in get_type_hints(type(settings), include_extras=True).items():
        check_value(name, getattr(settings, name), annotation)


def wanted(annotation: Any) -> str:
    """In words, what an annotation allows."""
    kind, bounds = _parts(annotation)
    if get_origin(kind) is Literal:
        *choices, last = (str(choice).lower() if choice in (True, False) else choice for choice in get_args(kind))
        return f"one of {', '.join(choices)}, {last}" if choices else last
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(wanted(member) for member in get_args(kind))
    if is_dataclass(kind):
        return f"a table of {', '.join(get_type_hints(kind))}"
    _, name = _KINDS.get(get_origin(kind) or kind, (None, "a table"))
    said = [f"{_BOUNDS[type(bound)][1]} {astuple(bound)[0]}" for bound in bounds if bound not in _UNSAID]
    *first, last = [*said, name] if kind is int else [name, *said]
    return f"{', '.join(first)} and {last}" if first else last


def _fits(value: Any, annotation: Any) -> bool:
    kind, bounds = _parts(annotation)
    if get_origin(kind) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, member) for member in get_args(kind))
    if is_dataclass(kind):
        return type(value) is kind or _fits_table(value, get_type_hints(kind, include_extras=True))
    is_one, _ = _KINDS.get(get_origin(kind) or kind, (lambda value: True, ""))
    return is_one(value) and all(_BOUNDS[type(bound)][0](value, astuple(bound)[0]) for bound in bounds)


def _fits_table(value: Any, hints: Mapping[str, Any]) -> bool:
    """Whether a mapping has the keys of a dataclass, those alone, and values that they allow."""
    return (
        isinstance(value, Mapping)
        and set(value) == set(hints)
        and all(_fits(value[name], annotation) for name, annotation in hints.items())
    )


def _parts(annotation: Any) -> tuple[Any, list[Any]]:
    """The type in an annotation, and the bounds noted beside it."""
    if get_origin(annotation) is not Annotated:
        return annotation, []
    kind, *notes = get_args(annotation)
    return kind, [note for note in notes if type(note) in _BOUNDS]


def default_p_train() -> dict[str, float]:
    """The v0 mix: how likely a training row comes from each source."""
    return {"wiki": 0.784, "roam": 0.196, "primer": 0.020}


@dataclass(frozen=True)
class ModelConfig:
    """Everything that fixes the shape of a GPT. The defaults are the v0 model; docs/recipe.md has what options buy."""

    V: Annotated[int, Ge(1), Le(2**16), "size of the vocabulary"] = 256
    T: Annotated[Context, "context length in tokens"] = 256
    C: Annotated[Width, "width of the residual stream; C/H must be even"] = 256
    L: Annotated[Depth, "blocks (layers)"] = 4
    H: Annotated[Count, "attention heads a block; divides C"] = 4
    d_ff: Annotated[Width, "width inside the MLP; 4*C is usual"] = 1024
    dropout: Annotated[Fraction, "share of activations dropped in training; 0 for a corpus read about once"] = 0.1
    rope_theta: Annotated[float, Gt(0), "base of the rotary position embedding's wavelengths"] = 10000.0
    norm: Annotated[Literal["layer", "rms"], "LayerNorm, or RMSNorm: without the mean and without a bias"] = "layer"
    bias: Annotated[bool, "whether linear layers and LayerNorms have biases"] = True
    activation: Annotated[Literal["gelu", "relu2"], "in the MLP: GELU, or the square of ReLU"] = "gelu"
    qk_norm: Annotated[bool, "RMSNorm of each head's queries and keys: attention scores stay bounded"] = False
    value_residual: Annotated[bool, "attention's values are a learned mix with those of the first block"] = False
    x0_skip: Annotated[bool, "every block begins with a learned mix of the residual stream and the embedding"] = False
    zero_init: Annotated[
        bool, "projections back into the residual stream begin at 0, and so does a head of its own"
    ] = False
    tied: Annotated[bool, "the head shares the embedding's weight; false gives it its own"] = True
    logit_cap: Annotated[
        Annotated[float, Gt(0)] | None,
        "logits are bent so that none is beyond this (cap*tanh(x/cap)); null: as they are",
    ] = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.C % self.H:
            raise ValueError(f"C={self.C} is not a multiple of H={self.H}: every head needs the same width")
        if self.D % 2:
            raise ValueError(f"D = C/H = {self.C}/{self.H} = {self.D} is odd: RoPE rotates pairs, so D must be even")

    @property
    def D(self) -> int:
        return self.C // self.H

    @property
    def options(self) -> dict[str, Any]:
        """What differs from the plain model of the same sizes."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name in MODEL_OPTIONS and getattr(self, field.name) != field.default
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Build from a plain mapping, as stored in a checkpoint: the sizes are required, so that none is a guess.

        A `D` in it must agree with C/H; what is no size is as in a plain model where it is not given.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known - {"D"})
        if unknown:
            raise ValueError(f"unknown model settings {unknown}; known: {sorted(known | {'D'})}")
        missing = sorted(_SIZES - set(values))
        if missing:
            raise ValueError(f"model settings {missing} are required, and only {sorted(values)} are given")
        cfg = cls(**{k: v for k, v in values.items() if k in known})
        if values.get("D", cfg.D) != cfg.D:
            raise ValueError(f"D={values['D']} contradicts C/H = {cfg.C}/{cfg.H} = {cfg.D}")
        return cfg

    @classmethod
    def from_section(cls, values: Mapping[str, Any], **more: Any) -> ModelConfig:
        """Build from a section of settings, where `head_dim` may stand in place of H."""
        given = {**values, **more}
        head_dim, H, C = given.pop("head_dim", None), given.get("H"), given.get("C", cls.C)
        if (H is None) == (head_dim is None):
            raise ValueError("give either H (heads) or head_dim (width of a head): the other follows from C")
        if head_dim is not None:
            if C % head_dim:
                raise ValueError(f"C={C} is not a multiple of head_dim={head_dim}: every head needs the same width")
            given["H"] = C // head_dim
        return cls(**given)


_SIZES = frozenset({"V", "T", "C", "L", "H", "d_ff", "dropout"})
_PLAIN = _SIZES | {"rope_theta"}  # what also a model without options has
MODEL_OPTIONS = frozenset(field.name for field in fields(ModelConfig)) - _PLAIN


Multiple = Annotated[float, Ge(0)]


@dataclass(frozen=True)
class Groups:
    """Multiples by group of parameters: every parameter is in one of them."""

    matrices: Annotated[Multiple, "matrices inside the blocks"]
    embedding: Annotated[Multiple, "the embedding, and the head where it shares the embedding's weight"]
    head: Annotated[Multiple, "a head with a weight of its own"]
    vectors: Annotated[Multiple, "norms and biases"]

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class TrainConfig:
    """The learning-rate schedule, the optimizer and the mix. What only changes speed is not here."""

    total_steps: Annotated[Steps, "steps of the optimizer"]
    base_lr: Annotated[float, Gt(0), "highest learning rate, reached when the warm-up ends"] = 3e-4
    warmup_steps: Annotated[int, Ge(0), INT64, "steps over which the learning rate rises from 0 to base_lr"] = 200
    min_lr: Annotated[float, Ge(0), "learning rate of the last step, where the decay ends"] = 3e-5
    seed: Annotated[Seed, "of first weights, batches and dropout"] = 42
    B: Annotated[Rows, "batch size: rows a step"] = 32
    p_train: Mapping[str, float] = field(default_factory=default_p_train)
    p_val: Mapping[str, float] = field(default_factory=lambda: {"wiki": 1.0})
    weight_decay: Annotated[float, Ge(0), "of matrices; of norms and biases where decay_scale says so"] = 0.1
    beta1: Annotated[Fraction, "Adam's memory of the gradient's mean"] = 0.9
    beta2: Annotated[Fraction, "Adam's memory of the gradient's square"] = 0.95
    grad_clip: Annotated[float, Gt(0), "gradient clipping: a longer gradient is scaled down to this norm"] = 1.0
    eval_every: Annotated[Count, "steps between validations; the best step's weights are kept beside the last"] = 200
    eval_steps: Annotated[Batches, "batches of a validation"] = 20
    precision: Annotated[
        Literal["float32", "bf16"],
        "bf16 is mixed precision: matrix products and attention; weights and optimizer state stay float32",
    ] = "float32"
    optimizer: Annotated[Literal["adamw", "muon"], "muon is for the matrices inside the blocks, beside adamw"] = "adamw"
    document_mask: Annotated[
        bool, "attention mask by document: where a window spans several documents, none sees another"
    ] = False
    schedule: Annotated[Literal["cosine", "linear"], "how the learning rate falls from base_lr to min_lr"] = "cosine"
    flat: Annotated[Fraction, "share of the steps after the warm-up that stay at base_lr, before it falls"] = 0.0
    lr_scale: Annotated[Groups, "multiple of the schedule's learning rate"] = Groups(1.0, 1.0, 1.0, 1.0)
    decay_scale: Annotated[Groups, "multiple of weight_decay"] = Groups(1.0, 1.0, 1.0, 0.0)
    momentum_warmup: Annotated[
        int, Ge(0), INT64, "steps over which muon's momentum rises from 0.85 to 0.95; 0: it is 0.95 at once"
    ] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("lr_scale", "decay_scale"):  # as they come from a file: plain mappings
            if isinstance(multiples := getattr(self, name), Mapping):
                object.__setattr__(self, name, Groups(**multiples))


def to_dict(cfg: ModelConfig | TrainConfig) -> dict[str, Any]:
    """A plain dict for JSON and checkpoints. A model's has its sizes, the derived D, and those options that are on."""
    if not isinstance(cfg, ModelConfig):
        return asdict(cfg)
    return {**{name: value for name, value in asdict(cfg).items() if name in _PLAIN}, **cfg.options, "D": cfg.D}
