"""Faults in what a row loses in training, and when."""

from __future__ import annotations

from bench.mutants.fault import Fault

_MODEL = "niels_gpt/model/dropout.py"
_STEP = "niels_gpt/train/plain_step.py"
_TESTS = "tests/test_dropout.py"

FAULTS = (
    Fault("what stays is not enlarged", _MODEL, "0.0, 1 / (1 - self.p))", "0.0, 1.0)", _TESTS),
    Fault("a vector loses single numbers", _MODEL, "(*h.shape[1:-1], 1)", "h.shape[1:]", _TESTS),
    Fault("every place loses the same", _MODEL, "keys + (place << 40)", "keys", _TESTS),
    Fault("places and rows overlap", _MODEL, "place << 40", "place", _TESTS),
    Fault("every row loses the same", _MODEL, " mixed(keys + ", " mixed(keys * 0 + ", _TESTS),
    Fault("neighbours are not mixed", _MODEL, "x = x ^ (x >> 15 & 0x1FFFF)", "x = x", _TESTS),
    Fault("twice as much falls", _MODEL, "round(p * (1 << 32))", "round(p * (1 << 33))", _TESTS),
    Fault("a step's key is that of all steps", _STEP, '"dropout", n)', '"dropout")', _TESTS),
    Fault("a run's seed does not reach its masks", _STEP, "derive_seed(self._cfg.seed, ", "derive_seed(0, ", _TESTS),
    Fault(
        "every row of a batch loses the same",
        _STEP,
        "self._key + batch.row_numbers",
        "self._key.expand(batch.B)",
        _TESTS,
    ),
    Fault(
        "rows are counted anew wherever they go",
        "niels_gpt/train/task.py",
        "return self.packed[-self.B - 1 : -1]",
        "return torch.arange(self.B)",
        _TESTS,
    ),
    Fault("embedding keeps everything", "niels_gpt/model/gpt.py", "h = dropout.on(h, place=0)", "pass", _TESTS),
    Fault("blocks share their masks", "niels_gpt/model/gpt.py", "place=1 + 3 * i", "place=1", _TESTS),
    Fault(
        "heads hear everything",
        "niels_gpt/model/blocks.py",
        "self.mixed(dropout.on_vectors(v, place=place), ",
        "self.mixed(v, ",
        _TESTS,
    ),
    Fault(
        "the MLP loses what attention loses", "niels_gpt/model/blocks.py", "place=place + 2", "place=place + 1", _TESTS
    ),
    Fault(
        "dropout in evaluation",
        "niels_gpt/model/gpt.py",
        "if not self.training or not self.cfg.dropout",
        "if not self.cfg.dropout",
        _TESTS,
    ),
)
