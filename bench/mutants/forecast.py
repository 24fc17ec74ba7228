"""Faults in the loss that doctor foretells, and in presets that rest on others."""

from __future__ import annotations

from bench.mutants.fault import Fault

_LAW, _DOCTOR, _PRESETS = (
    "niels_gpt/train/scaling_law.py",
    "niels_gpt/pipeline/doctor.py",
    "niels_gpt/pipeline/presets.py",
)
_TESTS = "tests/test_scaling_law.py"
_TOLD = "tests/test_doctor.py::test_the_loss_that_a_run_will_end_at_is_told"
_BASED = "tests/test_cli.py::test_a_preset_may_be_based_on_another"

FAULTS = (
    Fault("text that is not read teaches", _LAW, "return min(self.read, self.size", "return max(0, self.size", _TESTS),
    Fault("read again is as good as new", _LAW, "(1 - math.exp(-again / _READ_AGAIN))", "again", _TESTS),
    Fault("text is counted in bytes", _LAW, "for reading in readings) / 1e6", "for reading in readings)", _TESTS),
    Fault("steps do not count", _LAW, "(steps / 100) ** -1.47", "(steps / 100) ** -0.0", _TESTS),
    Fault("a token is as long in any vocabulary", _LAW, "math.log2(vocabulary / 1024)", "0", _TESTS),
    Fault("held-out text is trained on", _DOCTOR, '(1 - source["split"].get("val_frac", 0.0))', "1", _TOLD),
    Fault("a token budget is not looked at", _DOCTOR, "if budget is not None else []", "if False else []", _TOLD),
    Fault("too little text gets a figure", _DOCTOR, "if text < SMALLEST_TEXT or", "if", _TOLD),
    Fault("too small a model gets a figure", _DOCTOR, "or parameters < SMALLEST_MODEL:", "or False:", _TOLD),
    Fault("AdamW is as good as the recipe", _DOCTOR, '["optimizer"] != "muon"', '["optimizer"] == ""', _TOLD),
    Fault("a guess is not called one", _DOCTOR, "if text > LARGEST_TEXT or", "if", _TOLD),
    Fault(
        "weights of the mix are not looked at",
        _DOCTOR,
        "Reading(size or in_all * share, in_all * share)",
        "Reading(size or in_all, in_all)",
        _TOLD,
    ),
    Fault("a circle of presets is walked for ever", _PRESETS, "if base in chain:", "if len(chain) > 99:", _BASED),
    Fault(
        "only the nearest base counts",
        _PRESETS,
        "for link in reversed(chain):",
        "for link in reversed(chain[:2]):",
        _BASED,
    ),
)
