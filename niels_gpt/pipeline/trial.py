"""Trial of an accelerator before it is trusted: twenty steps there and on the CPU must have the same losses.

Kernels of a new driver or backend have computed wrong gradients before, and nothing in a run would show it. The result
of a trial is kept beside the logs, so that only the first run on a device with a version of torch takes the time.
"""

import math
import os
import time
from dataclasses import dataclass
from statistics import median

import torch
from torch.nn import functional as F

from niels_gpt.config import ModelConfig
from niels_gpt.device import machine_name, prepare_device
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import read_meta
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, project_root
from niels_gpt.rng import make_generator

STEPS, _B = 20, 8
_MODEL = ModelConfig(V=1024, T=128, C=256, L=2, H=4, d_ff=1024, dropout=0.0)
_LARGEST_ERROR = 0.02  # nats: TF32 products stay below half of it


@dataclass(frozen=True)
class Steps:
    """Losses of the trial's steps in nats/token, and the median duration of a step."""

    losses: tuple[float, ...]
    seconds: float


def stage_device(stage: Stage) -> str:
    """Set up this process for computing and return its device, after a trial if it is an accelerator.

    If `runtime.device` is auto, a device that fails becomes the CPU. One that was asked for by name must compute
    right, but may be slow.
    """
    runtime = stage.params.runtime
    device = prepare_device(runtime.device, threads=runtime.threads)
    if device == "cpu":
        return device
    file, kind = project_root() / layout.LOGS / "device.json", device.partition(":")[0]
    known = read_meta(file) if file.is_file() else {}
    subject = f"{kind}, {machine_name(device)}, torch {torch.__version__}"
    if subject not in known:
        if "RANK" in os.environ:  # the parent of all ranks has had no doubt
            return device
        wrong, slow = compare(steps_on(device), steps_on("cpu"))
        known = {**known, subject: {"wrong": wrong, "slow": slow}}
        write_json(file, known)
        stage.say(f"tried {device} against the CPU: {wrong or slow or 'same losses, and faster'}")
    wrong, slow = known[subject]["wrong"], known[subject]["slow"]
    if wrong and runtime.device != "auto":
        raise ValueError(f"{device} computes wrongly here ({wrong}): set runtime.device to cpu, or update torch")
    if wrong or (slow and runtime.device == "auto"):
        stage.say(f"using the CPU, not {device}: {wrong or slow}; delete {file} to try it again")
        return prepare_device("cpu", threads=runtime.threads)
    return device


def compare(there: Steps, cpu: Steps) -> tuple[str, str]:
    """Return what is wrong with a device's losses, and how much slower it is; "" where nothing is."""
    slow = f"{there.seconds / cpu.seconds:.1f} times as long a step" if there.seconds > cpu.seconds else ""
    for step, (loss, right) in enumerate(zip(there.losses, cpu.losses, strict=True)):
        if not math.isfinite(loss):
            return f"its loss is {loss} at step {step}", slow
        if abs(loss - right) > _LARGEST_ERROR:
            return f"its loss is {loss:.3f} at step {step}, and {right:.3f} on the CPU", slow
    return "", slow


def steps_on(device: str) -> Steps:
    """Train a small model on tokens of a skewed distribution, from the same weights on every device."""
    random = make_generator(0)
    model = GPT(_MODEL)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data = torch.randn(parameter.shape, generator=random) * 0.02
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, seconds = [], []
    for _ in range(STEPS):
        rows = torch.rand(_B, _MODEL.T + 1, generator=random).pow(4).mul(_MODEL.V).long().to(device)
        start = time.perf_counter()
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # synchronizes
        seconds.append(time.perf_counter() - start)
    return Steps(tuple(losses), median(seconds))
