"""Choose model size, number of tokens, batch size and steps for a given text and training time.

Of a few sizes, take the one with the lowest loss by the scaling law, within the time and within the number of epochs
that has helped. docs/recipe.md has the runs behind the figures.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from niels_gpt.config import ModelConfig
from niels_gpt.model.gpt import GPT
from niels_gpt.model.size import BYTES, Reading, bytes_per_token, expected_bits_per_byte, flops_per_token, most_epochs

# Stay below the number of epochs at which doctor warns: the exact number of tokens is known only after encoding.
_OF_MOST_EPOCHS = 0.75
_MOST_AT_ONCE = 32768  # tokens per step: as in preset v2, which fits a GPU
_MOST_AT_ONCE_ON_CPU = 16384
_FEWEST_STEPS = 10
_BATCH_EPOCHS = 8  # more do not make a batch larger: those runs were measured with the batch of 6 to 12
TAUGHT = 2.4  # time of a teacher and its student over that of one run; measured: docs/recipe.md
_LEAST_TAUGHT = 2_000_000  # parameters: a smaller student was no better than a plain model


@dataclass(frozen=True)
class Size:
    """Model shape and context; a model of this size would memorize less than `least_text` bytes of text."""

    C: int
    L: int
    T: int
    head_dim: int
    least_text: float


# The sample's size, and sizes from preset v2-small to v2 at a measured ratio of depth to width.
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
    """Speed of a machine: FLOP/s that a training step reaches on idle cores, and what else decides a plan."""

    flops: float
    cuda: bool = False
    busy: float = 0.0  # share of the cores that other programs use, 0 to 1
    start: float = 3.5  # seconds that a stage takes to start


def seconds_to_start() -> float:
    """Return the mean seconds that a stage takes to start, by those of a Python that imports what training does."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import pyarrow.parquet, pydantic, ruamel.yaml, torch"], check=True)
    return 0.85 * (time.perf_counter() - start)  # other stages import less, and DVC takes its part


@dataclass(frozen=True)
class PlannedRun:
    """One training run: model size, vocabulary, and `steps` steps of B rows."""

    size: Size
    V: int
    B: int
    steps: int
    parameters: int
    flops: float  # per token, forward and backward
    text_tokens: float  # estimated tokens of the training text
    limited_by: str  # "time" or "text"
    taught: bool = False  # by a model that is trained first, in the same way

    @property
    def tokens(self) -> int:
        return self.steps * self.B * self.size.T

    @property
    def epochs(self) -> float:
        return self.tokens / self.text_tokens

    def expected(self, law: Callable[..., Any]) -> Any:
        """Return what a law of model/size.py says about this run."""
        a_token = bytes_per_token(self.V)
        reading = Reading(self.text_tokens * a_token, self.tokens * a_token, in_epochs=True)
        return law(self.parameters, [reading], steps=self.steps)

    def seconds(self, machine: Machine) -> float:
        """Return the estimated training time in seconds."""
        return self.tokens * self.flops / machine.flops * (TAUGHT if self.taught else 1)


def vocabulary_for(text_bytes: float, *, characters: int, words: int) -> int:
    """Return the vocabulary size for a text, or `BYTES` if it is too short or too repetitive for SentencePiece.

    Training the tokenizer fails if the text has fewer vocabulary entries than requested. Texts of 3 kB to 300 kB
    (notes, a book, Chinese poems, one line repeated) all had more than the estimate `found`.
    """
    found = 0.8 * (BYTES + 1 + characters + 0.3 * words)
    needed = BYTES + 1 + 1.5 * characters  # one entry per character, and some longer ones
    wanted = next(size for most, size in _WANTED if text_bytes < most)
    for size in sorted(_VOCABULARIES, key=lambda size: (size < wanted, abs(size - wanted))):
        if needed <= size <= found and text_bytes >= _LEAST_TEXT_FOR_PIECES:
            return size
    return BYTES


_LEAST_TEXT_FOR_PIECES = 50e3
_VOCABULARIES = (512, 1024, 2048, 4096, 8192, 16128, 32768)
# (text is smaller than this many bytes, preferred vocabulary size)
_WANTED = ((1e6, 1024), (4e6, 4096), (16e6, 8192), (math.inf, 16128))


def fit_run(text_bytes: float, *, V: int, machine: Machine, seconds: float) -> PlannedRun:
    """Return the run with the lowest expected loss for `text_bytes` of training text and `seconds` of training.

    It gets a teacher if there is time for both to read the text as often as helps.
    """
    fitting = [size for size in SIZES if text_bytes >= size.least_text]
    runs = [_run(size, text_bytes, V, machine, seconds) for size in fitting]
    plain = min(runs, key=lambda run: run.expected(expected_bits_per_byte))
    taught = _run(plain.size, text_bytes, V, machine, seconds, taught=True)
    return taught if taught.limited_by == "text" and taught.parameters >= _LEAST_TAUGHT else plain


def _run(
    size: Size, text_bytes: float, V: int, machine: Machine, seconds: float, *, taught: bool = False
) -> PlannedRun:
    shape = {"T": size.T, "C": size.C, "L": size.L, "head_dim": size.head_dim, "d_ff": 4 * size.C}
    parameters, flops = costs(ModelConfig.from_section(shape, V=V), size.T)
    text_tokens = text_bytes / bytes_per_token(V)
    by_time = machine.flops * seconds / flops / (TAUGHT if taught else 1)
    by_text = _OF_MOST_EPOCHS * most_epochs(parameters, in_epochs=True) * text_tokens
    tokens = min(by_time, by_text)
    most = _MOST_AT_ONCE if machine.cuda else _MOST_AT_ONCE_ON_CPU
    # Batches of about 2 * sqrt(tokens) tokens were near the best in runs of 2 M and 8 M tokens (docs/recipe.md).
    B = round(min(most, 2 * math.sqrt(min(tokens, _BATCH_EPOCHS * text_tokens))) / size.T)
    B = min(max(4, B), max(1, int(tokens / size.T / _FEWEST_STEPS)))
    steps = max(1, int(tokens / (B * size.T)))
    limit = "time" if by_time < by_text else "text"
    return PlannedRun(size, V, B, steps, parameters, flops, text_tokens, limit, taught)


@cache
def costs(cfg: ModelConfig, T: int) -> tuple[int, int]:
    """Return (parameters, FLOPs per token of training); the model is on the meta device, where it takes no memory."""
    with torch.device("meta"):
        model = GPT(cfg)
    return model.parameter_count(), flops_per_token(model, T=T)
