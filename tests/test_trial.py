"""Tests of the device trial: a device that computes wrong results is detected, and the CPU takes its place."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from niels_gpt.config import ModelConfig
from niels_gpt.pipeline import trial
from niels_gpt.pipeline.stage import Inputs, Stage
from niels_gpt.pipeline.trial import Steps, compare, stage_device, steps_on
from tests.in_process import tiny_params

Lie = Callable[[torch.Tensor], torch.Tensor]
LIES: Mapping[str, tuple[str, Lie]] = {
    "products a tenth too large": ("mm", lambda out: out * 1.1),
    "an attention that sees nothing": ("scaled_dot_product", torch.zeros_like),
    "gradients of the embedding lost": ("embedding_dense_backward", torch.zeros_like),
    "a square root that is not a number": ("sqrt", lambda out: out * float("nan")),
}


class LyingDevice(TorchDispatchMode):
    """The CPU, with one operation computed wrongly."""

    def __init__(self, name: str, lie: Lie) -> None:
        super().__init__()
        self.name, self.lie, self.lied = name, lie, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.name not in str(func):
            return out
        self.lied += 1
        if isinstance(out, torch.Tensor):
            return self.lie(out) if not func._schema.is_mutable else out.copy_(self.lie(out))
        if isinstance(out, list | tuple) and isinstance(out[0], torch.Tensor):
            return type(out)([self.lie(out[0]), *out[1:]])
        return out


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_MODEL", ModelConfig(V=256, T=32, C=64, L=1, H=2, d_ff=128, dropout=0.0))


def stage_on(device: str) -> Stage:
    return Stage(name="train", key="", params=tiny_params({"runtime.device": device}), inputs=Inputs({}, {}))


@pytest.mark.slow
def test_equal_devices_have_equal_losses_that_fall() -> None:
    steps = steps_on("cpu")
    assert compare(steps, steps_on("cpu"))[0] == ""
    assert steps.losses[-1] < steps.losses[0] - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_a_device_that_computes_wrongly_is_detected(lie: str) -> None:
    with LyingDevice(*LIES[lie]) as device:
        there = steps_on("cpu")
    assert device.lied
    assert compare(there, steps_on("cpu"))[0].startswith("its loss is ")


@pytest.mark.parametrize(
    ("there", "name", "device", "said"),
    [
        (Steps((2.0, 1.0), 0.5), "auto", "mps", "same losses, and faster"),
        (Steps((2.0, 1.0), 1.5), "auto", "cpu", "1.5 times as long a step"),
        (Steps((2.0, 1.0), 1.5), "mps", "mps", "1.5 times as long a step"),
        (Steps((2.0, 1.1), 0.5), "auto", "cpu", "its loss is 1.100 at step 1, and 1.000 on the CPU"),
    ],
)
def test_auto_takes_the_cpu_where_a_device_is_wrong_or_slow(
    there: Steps,
    name: str,
    device: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    (tmp_path / "logs").mkdir()
    tried: list[str] = []

    def steps(device: str) -> Steps:
        tried.append(device)
        return there if device == "mps" else Steps((2.0, 1.0), 1.0)

    monkeypatch.setattr(trial, "steps_on", steps)
    monkeypatch.setattr(trial, "prepare_device", lambda name, *, threads: "mps" if name == "auto" else name)
    for _ in range(2):
        assert stage_device(stage_on(name)) == device
    lines = capsys.readouterr().out.replace("train: ", "").splitlines()
    assert tried == ["mps", "cpu"]  # once; the second run uses the recorded result
    assert lines[0] == f"tried mps against the CPU: {said}"
    assert [line for line in lines[1:] if not line.startswith(f"using the CPU, not mps: {said};")] == []
    assert len(lines) == 1 + 2 * (device == "cpu")


def test_a_wrong_device_asked_for_by_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setattr(trial, "prepare_device", lambda name, *, threads: name)
    steps = {"mps": Steps((float("nan"),), 0.1), "cpu": Steps((1.0,), 1.0)}
    monkeypatch.setattr(trial, "steps_on", steps.__getitem__)
    with pytest.raises(
        ValueError, match=r"mps computes wrongly here .its loss is nan at step 0.: set runtime.device to"
    ):
        stage_device(stage_on("mps"))
