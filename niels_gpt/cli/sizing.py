"""What to train on a text in a time: the size of the model, how much it reads, and in which steps.

Of a few sizes the one is taken that the scaling law expects most of, within the time and without reading the text more
often than has helped. docs/recipe.md has the runs behind the figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch

from niels_gpt.config import ModelConfig
from niels_gpt.model.gpt import GPT
from niels_gpt.model.size import Reading, bytes_per_token, expected_bits_per_byte, flops_per_token, most_epochs

BYTES = 260  # the vocabulary of a tokenizer of bytes: 256 values and four chat tokens
# Below the bound that doctor warns at: how many tokens a text becomes is known only when it is encoded.
_OF_MOST_EPOCHS = 0.75
_MOST_AT_ONCE = 32768  # tokens of a step: those of preset v2, which fit a GPU
_MOST_AT_ONCE_ON_CPU = 16384
_FEWEST_STEPS = 10


@dataclass(frozen=True)
class Size:
    """A model and its context; text of less than `least_text` bytes would be known by heart by one so large."""

    C: int
    L: int
    T: int
    head_dim: int
    least_text: float


# The sample's, and those between preset v2-small and v2 with a share of depth to width that was measured.
SIZES = (
    Size(128, 2, 128, 64, 0),
    Size(192, 3, 256, 64, 0.5e6),
    Size(256, 4, 256, 64, 0.7e6),
    Size(384, 6, 256, 64, 3e6),
    Size(512, 8, 512, 128, 5e6),
    Size(640, 10, 512, 128, 20e6),
    Size(768, 12, 1024, 128, 20e6),
)


@dataclass(frozen=True)
class Machine:
    """What a step of training gets out of it, in FLOPs a second."""

    flops: float
    cuda: bool = False


@dataclass(frozen=True)
class Run:
    """One training: a model of a size and a vocabulary, `steps` of B rows."""

    size: Size
    V: int
    B: int
    steps: int
    parameters: int
    flops: float  # a token, forward and backward
    text_tokens: float  # there are to read, about
    limited_by: str  # "time" or "text"

    @property
    def tokens(self) -> int:
        return self.steps * self.B * self.size.T

    @property
    def epochs(self) -> float:
        return self.tokens / self.text_tokens

    def seconds(self, machine: Machine) -> float:
        return self.tokens * self.flops / machine.flops


def vocabulary_for(text_bytes: float, *, characters: int, words: int) -> int:
    """The pieces that a text of so much is worth; bytes where it is too little, or says too little that is different.

    So many pieces as are asked for must be found in the text, or training the tokenizer fails. Texts of 3 kB to 300 kB
    (notes, a book, Chinese poems, one line again and again) all had more than is reckoned here.
    """
    found = 0.8 * (BYTES + 1 + characters + 0.3 * words)
    needed = BYTES + 1 + 1.5 * characters  # each of its own, and some of several
    wanted = next(size for most, size in _WANTED if text_bytes < most)
    for size in sorted(_VOCABULARIES, key=lambda size: (size < wanted, abs(size - wanted))):
        if needed <= size <= found and text_bytes >= _LEAST_TEXT_FOR_PIECES:
            return size
    return BYTES


_LEAST_TEXT_FOR_PIECES = 50e3
_VOCABULARIES = (512, 1024, 2048, 4096, 8192, 16128, 32768)
_WANTED = ((1e6, 1024), (4e6, 4096), (16e6, 8192), (math.inf, 16128))


def bytes_a_token(V: int) -> float:
    return 1.0 if V <= BYTES else bytes_per_token(V)


def fit_run(text_bytes: float, *, V: int, machine: Machine, seconds: float) -> Run:
    """The run that the law expects most of, of so much text to train on and so long."""
    fitting = [size for size in SIZES if text_bytes >= size.least_text]
    return min(
        (_run(size, text_bytes, V, machine, seconds) for size in fitting), key=lambda run: _bits(run, text_bytes)
    )


def _run(size: Size, text_bytes: float, V: int, machine: Machine, seconds: float) -> Run:
    parameters, flops = _cost(size, V)
    text_tokens = text_bytes / bytes_a_token(V)
    by_time = machine.flops * seconds / flops
    by_text = _OF_MOST_EPOCHS * most_epochs(parameters) * text_tokens
    tokens = min(by_time, by_text)
    most = _MOST_AT_ONCE if machine.cuda else _MOST_AT_ONCE_ON_CPU
    B = round(min(most, 2 * math.sqrt(tokens)) / size.T)
    B = min(max(4, B), max(1, int(tokens / size.T / _FEWEST_STEPS)))
    steps = max(1, int(tokens / (B * size.T)))
    limit = "time" if by_time < by_text else "text"
    return Run(size, V, B, steps, parameters, flops, text_tokens, limit)


def _bits(run: Run, text_bytes: float) -> float:
    read = run.tokens * bytes_a_token(run.V)
    return expected_bits_per_byte(run.parameters, [Reading(text_bytes, read)], steps=run.steps)


@cache
def _cost(size: Size, V: int) -> tuple[int, int]:
    """(parameters, FLOPs a token) of a model that is not there yet, and takes no memory."""
    cfg = ModelConfig.from_section(
        {"T": size.T, "C": size.C, "L": size.L, "head_dim": size.head_dim, "d_ff": 4 * size.C}, V=V
    )
    with torch.device("meta"):
        model = GPT(cfg)
    return model.parameter_count(), flops_per_token(model, T=size.T)
