"""The size of a model (parameters, FLOPs per token), and the loss that a scaling law predicts for it.

Sizes are counted from the modules themselves, so that they include what model options add.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import nn

from niels_gpt.config import ModelConfig
from niels_gpt.model.gpt import GPT


def parameter_count(cfg: ModelConfig) -> int:
    """Count the trainable parameters of a configuration, a tied weight once, without allocating them.

    Uses torch's meta device, which imports torch's compiler (1.6 s of CPU time): for an existing model call
    `GPT.parameter_count`. Blocks from the second on are alike, so models of 1 and 2 blocks are enough to count L.
    """
    with torch.device("meta"):
        one, two = (GPT(replace(cfg, L=L)).parameter_count() for L in (1, 2))
    return one + (cfg.L - 1) * (two - one)


def flops_per_token(model: GPT, *, T: int) -> int:
    """Return the training FLOPs per token: 6 per weight of a linear layer, plus attention over half the context.

    Frozen blocks have a forward pass only, a third of it; a frozen head also passes a gradient on, two thirds.
    """
    cfg, total = model.cfg, 0
    for block in model.blocks:
        layers = [layer.weight for layer in block.modules() if isinstance(layer, nn.Linear)]
        work = sum(weight.numel() for weight in layers) + T * cfg.H * cfg.D
        total += (6 if layers[0].requires_grad else 2) * work
    return total + (6 if model.lm_head.weight.requires_grad else 4) * model.lm_head.weight.numel()


# Scaling law: predicts the final validation loss from model size, text size and number of steps.
#
#     bits per byte = 0.8 + 0.358 / N^0.45 + 1.344 / D^0.239 + 0.124 / S^1.47
#
# N: millions of parameters; D: megabytes of text seen once; S: hundreds of steps. Fitted to 44 runs of preset v2's
# recipe on mixed English, with an RMS error of 0.03 (0.06 at most). Repeated text has diminishing returns: it is worth
# at most 2.67 times its size if windows are drawn at random (12 more runs, error within 0.06), 4.5 times if they are
# drawn in epochs (8 runs on two texts, within 0.05). See docs/recipe.md for the runs and recommendations.

# Range of the fitted runs. Below it the law is wrong (too high by 0.4 on the small sample text); above it, it has only
# been compared with published results.
SMALLEST_TEXT, LARGEST_TEXT = 0.7e6, 40e6  # bytes
SMALLEST_MODEL, LARGEST_MODEL = 900_000, 124_000_000  # parameters


@dataclass(frozen=True)
class Reading:
    """Text of `size` bytes, of which training reads `read` bytes in total, repeating it if `read` is larger."""

    size: float
    read: float
    in_epochs: bool = False  # every window once before any again, not at random

    @property
    def as_new(self) -> float:
        """Return the equivalent number of bytes of new text, each read once."""
        again = max(0.0, self.read / self.size - 1)
        worth = 3.5 if self.in_epochs else 1.67  # fitted: of all epochs after the first, in multiples of the text
        return min(self.read, self.size * (1 + worth * (1 - math.exp(-again / worth))))


def expected_bits_per_byte(parameters: int, readings: Iterable[Reading], *, steps: int) -> float:
    """Predict the validation loss in bits per byte on held-out text of the same sources, by the scaling law."""
    text = sum(reading.as_new for reading in readings) / 1e6
    return 0.8 + 0.358 * (parameters / 1e6) ** -0.45 + 1.344 * text**-0.239 + 0.124 * (steps / 100) ** -1.47


def most_epochs(parameters: int, *, in_epochs: bool = False) -> int:
    """Return the largest number of epochs over a text that helps a model of this size; `in_epochs`: see Reading."""
    # Of 12 runs with 2 to 32 epochs, those with 4 M parameters gained nothing after epoch 8 (0.8 MB for 16 epochs
    # without dropout ends at 3.43 bits per byte, for 8 with dropout at 2.29), those with 0.9 M nothing after epoch 16.
    # Sizes in between use the nearer of the two. With windows in epochs, an average and more weight decay, models of
    # 0.5 M to 14 M still gained from epoch 12 to 24; more was not tried.
    return 32 if in_epochs else 16 if parameters < 2_000_000 else 8


BYTES = 260  # vocabulary of the byte tokenizer: 256 byte values and 4 chat tokens
BASE_BYTES_PER_TOKEN = 3.5  # 3.2 and 3.9 on two note vaults with SmolLM2's tokenizer


def bytes_per_token(vocabulary: int) -> float:
    """Estimate the bytes per token of English text for a SentencePiece vocabulary of this size; 1 for bytes.

    Measured: 2.24, 3.17 and 4.03 bytes with 1,024, 4,096 and 16,128 entries.
    """
    return 1.0 if vocabulary <= BYTES else 2.24 + 0.45 * math.log2(vocabulary / 1024)


class Ability(StrEnum):
    """Kinds of text that a model writes, from the least to the most."""

    NO_WORDS = "will not form words"
    WORDS = "will form words, not sentences"
    SENTENCES = "sentences in your style"

    @property
    def measured(self) -> str:
        """Return the phrase for a model that exists."""
        return self.replace("will not form", "does not form").replace("will form", "forms")


def expected_ability(parameters: int, readings: Sequence[Reading], *, steps: int) -> Ability:
    """Predict what a model will write; the law serves as an index of size, text and steps, also below its range.

    Words are learned from repeated text as well as from new text, sentences are not.
    """
    often = [Reading(reading.read, reading.read) for reading in readings]
    # The runs behind the two bounds, in bits per byte by the law: docs/report-card.md.
    if expected_bits_per_byte(parameters, often, steps=steps) > 2.5:
        return Ability.NO_WORDS
    bits = expected_bits_per_byte(parameters, readings, steps=steps)
    return Ability.WORDS if bits > 1.3 else Ability.SENTENCES
