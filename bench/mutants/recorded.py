"""Faults in a validation that a GPU records, and in who asks for its losses."""

from __future__ import annotations

from bench.mutants.fault import Fault

_MODEL = "niels_gpt/train/recorded_model.py"
_STEP = "niels_gpt/train/graph_step.py"
_SCORES = "niels_gpt/eval/held_out.py"
_TESTS = "tests/test_recorded_model.py"

FAULTS = (
    Fault("rows that fill a batch up are returned", _MODEL, "(inputs)[: len(x)]", "(inputs)", _TESTS),
    Fault("rows of any length are replayed", _MODEL, "if x.shape[1] != T or len(x) > B:", "if len(x) > B:", _TESTS),
    Fault("any number of rows is replayed", _MODEL, "if x.shape[1] != T or len(x) > B:", "if x.shape[1] != T:", _TESTS),
    Fault("nothing is replayed", _MODEL, "if x.shape[1] != T or len(x) > B:", "if True:", _TESTS),
    Fault("every batch is recorded", _MODEL, "if names not in self._recordings:", "if True:", _TESTS),
    Fault("one recording for all ids", _MODEL, "names = tuple(inputs)", 'names = ("x",)', _TESTS),
    Fault("a replay reads the first batch", _MODEL, "self._inputs[name].copy_(value)", "pass", _TESTS),
    Fault(
        "a replay is not given its batch",
        _MODEL,
        "self._inputs[name].copy_(value)",
        "self._inputs[name] = value",
        _TESTS,
    ),
    Fault("losses of the recording for ever", _MODEL, "        self._graph.replay()\n", "", _TESTS),
    Fault("the next replay overwrites losses", _MODEL, "return self._losses.clone()", "return self._losses", _TESTS),
    Fault("a recording takes memory of its own", _MODEL, "record(losses, pool=pool)", "record(losses)", _TESTS),
    Fault(
        "ids do not reach the model",
        _MODEL,
        "return token_losses(self._loss.model, x, y, **ids)",
        "return token_losses(self._loss.model, x, y)",
        _TESTS,
    ),
    Fault("each validation records anew", _STEP, "if self._recorded is None:", "if True:", _TESTS),
    Fault(
        "a step's own losses are never asked for",
        "niels_gpt/train/loop.py",
        "task.validate(step.validated(model), ",
        "task.validate(model, ",
        _TESTS,
    ),
    Fault("a scorer is asked for logits", _SCORES, "if isinstance(model, Scorer):", "if False:", _TESTS),
    Fault("a mean over all targets", _SCORES, "/ count_targets(y)", "/ y.numel()", _TESTS),
    Fault(
        "weights as the first validation cast them",
        _SCORES,
        "with torch.inference_mode():",
        "with torch.no_grad():",
        f"{_TESTS}::test_a_recording_in_bf16_casts_the_weights_as_they_are_at_each_replay",
    ),
    Fault(
        "a validation's ids are lost",
        _SCORES,
        "logits = model(x, **ids)",
        "logits = model(x)",
        "tests/test_document_mask.py::test_training_and_validation_see_one_document_at_a_time",
    ),
    Fault(
        "a token's loss is in the compiled model's training mode",
        "niels_gpt/train/plain_step.py",
        "return self.model.token_losses(self._hidden(h, **rows), y)",
        "self.model.train()\n        return self.model.token_losses(self._hidden(h, **rows), y)",
        _TESTS,
    ),
)
