"""The two configurations that decide what a model is and how it was trained.

Letters, here and everywhere: B batch, T context, C width, L blocks, H heads, D = C/H head width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Literal

Renderer = Literal["transcript", "chat_tokens"]  # how chats are put to a model: as text, or with tokens of their own


def default_p_train() -> dict[str, float]:
    """The v0 mix: how likely a training row comes from each source."""
    return {"wiki": 0.784, "roam": 0.196, "primer": 0.020}


@dataclass(frozen=True)
class ModelConfig:
    """Everything that fixes the shape of a GPT. The defaults are the v0 model."""

    V: int = 256
    T: int = 256
    C: int = 256
    L: int = 4
    H: int = 4
    d_ff: int = 1024
    dropout: float = 0.1
    rope_theta: float = 10000.0

    def __post_init__(self) -> None:
        for name in ("V", "T", "C", "L", "H", "d_ff"):
            size = getattr(self, name)
            if not isinstance(size, Integral) or size < 1:
                raise ValueError(f"{name} must be at least 1 and a whole number, got {size!r}")
        for name in ("dropout", "rope_theta"):
            if not isinstance(getattr(self, name), Real):
                raise ValueError(f"{name} must be a number, got {getattr(self, name)!r}")
        if self.C % self.H:
            raise ValueError(f"C={self.C} is not a multiple of H={self.H}: every head needs the same width")
        if self.D % 2:
            raise ValueError(f"D = C/H = {self.C}/{self.H} = {self.D} is odd: RoPE rotates pairs, so D must be even")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if not 0.0 < self.rope_theta < math.inf:
            raise ValueError(f"rope_theta must be positive and finite, got {self.rope_theta}")

    @property
    def D(self) -> int:
        return self.C // self.H

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Build from a plain mapping, as stored in a checkpoint: the sizes are required, so that none is a guess.

        A `D` in it must agree with C/H; without a `rope_theta` it is 10000, which is no size.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known - {"D"})
        if unknown:
            raise ValueError(f"unknown model settings {unknown}; known: {sorted(known | {'D'})}")
        missing = sorted(known - set(values) - {"rope_theta"})
        if missing:
            raise ValueError(f"model settings {missing} are required, and only {sorted(values)} are given")
        cfg = cls(**{k: v for k, v in values.items() if k in known})
        if values.get("D", cfg.D) != cfg.D:
            raise ValueError(f"D={values['D']} contradicts C/H = {cfg.C}/{cfg.H} = {cfg.D}")
        return cfg


@dataclass(frozen=True)
class TrainConfig:
    """The schedule and the mix. What only changes speed (device, threads, log interval) is not here."""

    total_steps: int
    base_lr: float = 3e-4
    warmup_steps: int = 200
    min_lr: float = 3e-5
    seed: int = 42
    B: int = 32
    p_train: Mapping[str, float] = field(default_factory=default_p_train)
    p_val: Mapping[str, float] = field(default_factory=lambda: {"wiki": 1.0})
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    grad_clip: float = 1.0
    eval_every: int = 200
    eval_steps: int = 20
    precision: Literal["float32", "bf16"] = "float32"
    optimizer: Literal["adamw", "muon"] = "adamw"

    def __post_init__(self) -> None:
        for name in ("total_steps", "B", "eval_every", "eval_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def to_dict(cfg: ModelConfig | TrainConfig) -> dict[str, Any]:
    """A plain dict for JSON and checkpoints; a model's also carries the derived D."""
    out = asdict(cfg)
    if isinstance(cfg, ModelConfig):
        out["D"] = cfg.D
    return out
