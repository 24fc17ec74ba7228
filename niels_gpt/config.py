"""Model and training configuration, and the validation of settings.

A setting is a field of a frozen pydantic dataclass: `Annotated[type, range, "one line of help"]`. This is the only
place where its range is defined: the constructors, the check of the parameters and the parameter reference all use it.

Symbols, here and everywhere: `B` batch size in rows, `T` context length in tokens, `C` width of the residual stream,
`L` blocks, `H` heads per block, `K` heads of keys and values, `D` width of a head (C/H by default), `V` vocabulary
size.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, field, fields
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, SkipValidation, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

Renderer = Literal["transcript", "chat_tokens", "chatml"]  # chat format; see niels_gpt.chat_template

INT64 = Lt(2**63)  # the largest integer a tensor or a file can hold
Count = Annotated[int, Ge(1), INT64]
Natural = Annotated[int, Ge(0), INT64]
Seed = Natural
# The upper bounds are larger than any feasible run and only catch typing errors. Whether a model and batch fit this
# machine's memory is checked in niels_gpt/train/task.py.
Rows = Annotated[int, Ge(1), Le(2**20)]  # per batch; their indices are sampled in one call
Width = Annotated[int, Ge(1), Le(2**18)]  # a square float32 matrix of the maximum takes 256 GiB
Heads = Annotated[int, Ge(1), Le(2**18)]
Depth = Annotated[int, Ge(1), Le(1024)]  # blocks are built one by one: 100,000 take over an hour
Context = Annotated[int, Ge(1), Le(2**20)]  # position tables have T rows
Steps = Annotated[int, Ge(1), Le(10**8)]  # the loss of every step is stored in each checkpoint
Batches = Annotated[int, Ge(1), Le(10**6)]  # of one validation, during which training waits
NewTokens = Annotated[int, Ge(1), Le(2**20)]  # generated one at a time
Fraction = Annotated[float, Ge(0), Lt(1)]

_T = TypeVar("_T")
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Section(BaseModel):
    """Section of the parameters: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(**STRICT, frozen=True)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def settings(cls: type[_T]) -> type[_T]:
    """Make the class a frozen pydantic dataclass whose constructor raises a one-line ValueError."""
    made: Any = pydantic_dataclass(cls, frozen=True, config=None if hasattr(cls, "__pydantic_config__") else STRICT)
    construct = made.__init__

    @wraps(construct)
    def checked(self: _T, *args: Any, **kwargs: Any) -> None:
        with _one_sentence():
            construct(self, *args, **kwargs)

    made.__init__ = checked
    return made


def check_value(name: str, value: Any, annotation: Any) -> None:
    """Raise a ValueError if the value does not have the annotation's type or is outside its range."""
    with _one_sentence(name):
        TypeAdapter(annotation, config=STRICT).validate_python(value)


_PROBLEMS = {"missing": "is missing", "unexpected_keyword_argument": "is not a setting"}


@contextmanager
def _one_sentence(*path: str) -> Iterator[None]:
    """Turn pydantic's ValidationError into a one-line ValueError; `path` precedes the names of the settings."""
    try:
        yield
    except ValidationError as error:
        problems = []
        for problem in error.errors(include_url=False):
            where = ".".join(map(str, (*path, *problem["loc"])))
            wanted = f"{problem['msg'].replace('Input should be', 'must be')} (got {problem['input']!r})"
            cause = problem.get("ctx", {}).get("error")  # raised by a __post_init__, about several fields
            problems.append(str(cause or f"{where} {_PROBLEMS.get(problem['type'], wanted)}"))
        raise ValueError("; ".join(problems)) from None


def default_p_train() -> dict[str, float]:
    """Return the v0 data mix: the probability that a training row comes from each source."""
    return {"wiki": 0.784, "roam": 0.196, "primer": 0.020}


@settings
class ModelConfig:
    """Architecture of a GPT. The defaults are the v0 model; docs/recipe.md lists what each option gains."""

    V: Annotated[int, Ge(1), Le(2**18), "size of the vocabulary"] = 256
    T: Annotated[Context, "context length in tokens"] = 256
    C: Annotated[Width, "width of the residual stream; C/H must be even"] = 256
    L: Annotated[Depth, "blocks (layers)"] = 4
    H: Annotated[Heads, "attention heads a block; divides C unless head_dim is given"] = 4
    d_ff: Annotated[Width, "width inside the MLP; 4*C is usual"] = 1024
    dropout: Annotated[Fraction, "share of activations dropped in training; 0 for a corpus read about once"] = 0.1
    rope_theta: Annotated[float, Gt(0), "base of the rotary position embedding's wavelengths"] = 10000.0
    norm: Annotated[Literal["layer", "rms"], "LayerNorm, or RMSNorm: without the mean and without a bias"] = "layer"
    bias: Annotated[bool, "whether linear layers and LayerNorms have biases"] = True
    norm_eps: Annotated[float, Gt(0), "added to the variance in every norm, so that none divides by 0"] = 1e-5
    activation: Annotated[
        Literal["gelu", "relu2", "swiglu"],
        "in the MLP: GELU, the square of ReLU, or SwiGLU, which has a third matrix (d_ff of 8/3*C is as large as 4*C)",
    ] = "gelu"
    kv_heads: Annotated[Heads | None, "GQA: heads of keys and values, each for H/kv_heads queries; null: H"] = None
    head_dim: Annotated[Width | None, "width of a head; null: C/H"] = None
    qk_norm: Annotated[bool, "RMSNorm of each head's queries and keys: attention scores stay bounded"] = False
    qk_gain: Annotated[bool, "learned gains in qk_norm, a vector for queries and one for keys (needs qk_norm)"] = False
    value_residual: Annotated[bool, "attention's values are a learned mix with those of the first block"] = False
    zero_init: Annotated[bool, "projections into the residual stream begin at 0, as does a head of its own"] = False
    tied: Annotated[bool, "the head shares the embedding's weight; false gives it its own"] = True
    logit_cap: Annotated[
        Annotated[float, Gt(0)] | None,
        "logits are bent so that none is beyond this (cap*tanh(x/cap)); null: as they are",
    ] = None

    def __post_init__(self) -> None:
        if self.head_dim is None and self.C % self.H:
            raise ValueError(f"C={self.C} is not a multiple of H={self.H}: every head needs the same width")
        if self.D % 2:
            ratio = f"head_dim={self.D}" if self.head_dim else f"D = C/H = {self.C}/{self.H} = {self.D}"
            raise ValueError(f"{ratio} is odd: RoPE rotates pairs, so D must be even")
        if self.H % self.K:
            raise ValueError(f"H={self.H} is not a multiple of kv_heads={self.K}: every group needs as many queries")
        if self.qk_gain and not self.qk_norm:
            raise ValueError("qk_gain is true without qk_norm, whose gains they are: set qk_norm to true")

    @property
    def D(self) -> int:
        return self.head_dim or self.C // self.H

    @property
    def K(self) -> int:
        return self.kv_heads or self.H

    @property
    def options(self) -> dict[str, Any]:
        """Return the architecture options that differ from their defaults."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _PLAIN}
        return {name: value for name, value in values.items() if value != getattr(ModelConfig, name)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """Build from a plain mapping, as stored in a checkpoint.

        The sizes and dropout are required, so that no stored model silently gets a default size. rope_theta and the
        options may be missing. A `D` must agree with C/H.
        """
        missing = sorted(_SIZES - set(values))
        if missing:
            raise ValueError(f"model settings {missing} are required, and only {sorted(values)} are given")
        cfg = cls(**{key: value for key, value in values.items() if key != "D"})
        if values.get("D", cfg.D) != cfg.D:
            raise ValueError(f"D={values['D']} contradicts C/H = {cfg.C}/{cfg.H} (head_dim: {cfg.head_dim})")
        return cfg

    @classmethod
    def from_section(cls, values: Mapping[str, Any], **more: Any) -> "ModelConfig":
        """Build from a section of the parameters, which gives H (heads), `head_dim` (their width), or both.

        Equal models get equal configurations: a `head_dim` that is C/H is not stored.
        """
        given = {**values, **more}
        head_dim, H, C = given.get("head_dim"), given.get("H"), given.get("C", cls.C)
        if H is None:
            if head_dim is None:
                raise ValueError("give H (heads), head_dim (width of a head) or both: either follows from C")
            if C % head_dim:
                raise ValueError(f"C={C} is not a multiple of head_dim={head_dim}: every head needs the same width")
            H = given["H"] = C // head_dim
        if head_dim is not None and head_dim * H == C:
            given["head_dim"] = None
        return cls(**given)


_SIZES = frozenset({"V", "T", "C", "L", "H", "d_ff", "dropout"})
_PLAIN = _SIZES | {"rope_theta"}  # stored for every model; options only where they are on


Multiple = Annotated[float, Strict(), Ge(0)]


@settings
class Groups:
    """Multipliers by parameter group; every parameter of a model is in exactly one group."""

    __pydantic_config__ = ConfigDict(**{**STRICT, "strict": False})  # strict mode would refuse a mapping from YAML

    matrices: Annotated[Multiple, "matrices inside the blocks"]
    embedding: Annotated[Multiple, "the embedding, and the head where it shares the embedding's weight"]
    head: Annotated[Multiple, "a head with a weight of its own"]
    vectors: Annotated[Multiple, "norms and biases"]


@settings
class TrainConfig:
    """Learning-rate schedule, optimizer and data mix of a run, without settings that only change speed."""

    total_steps: Annotated[Steps, "steps of the optimizer"]
    base_lr: Annotated[float, Gt(0), "highest learning rate, reached when the warm-up ends"] = 3e-4
    warmup_steps: Annotated[Natural, "steps over which the learning rate rises from 0 to base_lr"] = 200
    min_lr: Annotated[float, Ge(0), "learning rate of the last step, where the decay ends"] = 3e-5
    seed: Annotated[Seed, "of first weights, batches and dropout"] = 42
    B: Annotated[Rows, "batch size: rows per step"] = 32
    p_train: SkipValidation[Mapping[str, float]] = field(default_factory=default_p_train)  # see mix_probabilities
    p_val: SkipValidation[Mapping[str, float]] = field(default_factory=lambda: {"wiki": 1.0})
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
    document_mask: Annotated[bool, "attention mask: where a window spans several documents, none sees another"] = False
    schedule: Annotated[Literal["cosine", "linear"], "how the learning rate falls from base_lr to min_lr"] = "cosine"
    flat: Annotated[Fraction, "share of the steps after the warm-up that stay at base_lr, before it falls"] = 0.0
    lr_scale: Annotated[Groups, "multiple of the schedule's learning rate"] = Groups(1.0, 1.0, 1.0, 1.0)
    decay_scale: Annotated[Groups, "multiple of weight_decay"] = Groups(1.0, 1.0, 1.0, 0.0)
    windows: Annotated[
        Literal["random", "epochs"],
        "how windows of T+1 tokens are sampled: with replacement, or in shuffled epochs, which is better for text that "
        "is used once or twice",
    ] = "random"
    momentum_warmup: Annotated[Natural, "steps in which muon's momentum rises from 0.85 to 0.95; 0: 0.95 at once"] = 0
    average: Annotated[
        Fraction,
        "decay of a moving average of the weights, which then is what is validated and published; 0: the weights "
        "themselves",
    ] = 0.0
    teacher: Annotated[
        Fraction,
        "share of the targets that are the probabilities of a teacher: the same model, trained before it with another "
        "seed; 0: none",
    ] = 0.0
    replay: Annotated[Fraction, "share of a batch's rows that are pretraining text, so that tuning forgets less"] = 0.0
    patience: Annotated[Count | None, "validations in a row without a new best that end the run; null: never"] = None
    freeze_blocks: Annotated[
        Natural,
        "blocks, from the first on, that are not trained, nor is the embedding and a head tied to it: tuning on a CPU "
        "takes less time; below model.L; 0: all is trained",
    ] = 0


def to_dict(cfg: ModelConfig | TrainConfig) -> dict[str, Any]:
    """Return a plain dict for JSON and checkpoints; for a model: sizes, derived D, and options that are on."""
    if not isinstance(cfg, ModelConfig):
        return asdict(cfg)
    return {**{name: value for name, value in asdict(cfg).items() if name in _PLAIN}, **cfg.options, "D": cfg.D}
