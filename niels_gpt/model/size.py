"""The size of a model (parameters, FLOPs per token), and the loss that a scaling law expects of it.

Both are counted, so that what an option adds is in them, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import nn

from niels_gpt.config import ModelConfig
from niels_gpt.model.gpt import GPT


def parameter_count(cfg: ModelConfig) -> int:
    """Trainable numbers of a model that is not there yet, the tied weight counted once. No memory is taken for them
    (torch's meta device, with which torch's compiler is imported, 1.6 s of CPU time: whoever has a model asks that).
    Blocks from the second on are alike, so two are enough to count any number of them."""
    with torch.device("meta"):
        one, two = (GPT(replace(cfg, L=L)).parameter_count() for L in (1, 2))
    return one + (cfg.L - 1) * (two - one)


def flops_per_token(model: GPT, *, T: int) -> int:
    """Of training, forward and backward: 6 a weight of a linear layer, and attention over half the context."""
    weights = sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Linear))
    return 6 * weights + 6 * model.cfg.L * T * model.cfg.C


# A scaling law: about what loss training ends at, from the model's size, the text it reads and the number of steps.
#
#     bits per byte = 0.8 + 0.358 / N^0.45 + 1.344 / D^0.239 + 0.124 / S^1.47
#
# N: parameters in millions; D: megabytes of text, as read once; S: steps in hundreds. Fitted to 44 runs of preset v2's
# recipe on mixed English, which it meets within 0.03 (root mean square; 0.06 at most). Text that is read again is worth
# less and less, at most 2.67 times itself (12 more runs, within 0.06). docs/recipe.md has the runs, and what to choose.

# What the runs span. Below, the law is wrong (the sample's small text is learned 0.4 better than it says); above, it
# has only been compared with what others publish.
SMALLEST_TEXT, LARGEST_TEXT = 0.7e6, 40e6  # bytes
SMALLEST_MODEL, LARGEST_MODEL = 900_000, 124_000_000  # parameters
_READ_AGAIN = 1.67
# So many readings of one text are worth it. Of 12 runs with 2 to 32 readings those of 4 M parameters gained nothing
# after the eighth (0.8 MB read 16 times without dropout ends at 3.43 bits, 8 times with it at 2.29), those of 0.9 M
# nothing after the sixteenth. In between, the nearer of the two.
_READINGS = {2_000_000: 16, None: 8}


@dataclass(frozen=True)
class Reading:
    """A text of `size` bytes, of which training reads `read` bytes: more than once where that is more."""

    size: float
    read: float

    @property
    def as_new(self) -> float:
        """Bytes that would teach as much if each were read once."""
        again = max(0.0, self.read / self.size - 1)
        return min(self.read, self.size * (1 + _READ_AGAIN * (1 - math.exp(-again / _READ_AGAIN))))


def expected_bits_per_byte(parameters: int, readings: Iterable[Reading], *, steps: int) -> float:
    """On held-out text of the same kinds."""
    text = sum(reading.as_new for reading in readings) / 1e6
    return 0.8 + 0.358 * (parameters / 1e6) ** -0.45 + 1.344 * text**-0.239 + 0.124 * (steps / 100) ** -1.47


def most_epochs(parameters: int) -> int:
    """How many readings of a text are the most that have helped a model of this size."""
    return next(most for below, most in _READINGS.items() if below is None or parameters < below)


def bytes_per_token(vocabulary: int) -> float:
    """Of English in SentencePiece's pieces: 2.24, 3.17 and 4.03 were measured with 1,024, 4,096 and 16,128 of them."""
    return 2.24 + 0.45 * math.log2(vocabulary / 1024)
