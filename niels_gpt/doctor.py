"""What a run needs, whether it is there, and how long it will take on this machine."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from niels_gpt.config import ModelConfig, TrainConfig
from niels_gpt.device import prepare_device
from niels_gpt.model.gpt import GPT
from niels_gpt.train.execution import Execution
from niels_gpt.train.step import build_step
from niels_gpt.train.task import Batch

_PATIENCE_S = 3.0
_MEASURED_S = 8.0


@dataclass(frozen=True)
class Finding:
    """One thing looked at; `fix` says what to do where it is not well."""

    what: str
    fix: str | None = None


def examine(params: Mapping[str, Any], *, folder: Path) -> Iterator[Finding]:
    """Everything but the speed. `params` is params.yaml as a plain mapping."""
    yield Finding(f"python {sys.version.split()[0]}, torch {torch.__version__}, {os.cpu_count()} cores")
    yield _device(params["runtime"]["device"])
    yield _disk(params, folder)
    network: Finding | None = None
    for name, source in {**params["sources"], **params["chats"]}.items():
        dataset = source["load"].get("dataset")
        if dataset is None:
            yield _input(name, folder / source["input"], source["input"])
            continue
        network = network or _hub()
        yield Finding(f"{name}: {dataset} from the hub", network.fix)
    for stage in ("pretrain", "sft"):
        there = (folder / f"models/{stage}/best.pt").is_file()
        yield Finding(f"models/{stage}: " + ("trained" if there else "not trained yet; `dvc repro` does it"))


def _device(name: str) -> Finding:
    try:
        device = prepare_device(name, threads=0)
    except ValueError as error:
        return Finding(f"device {name}", str(error))
    label = torch.cuda.get_device_name() if device.startswith("cuda") else device
    return Finding(f"computing on {label}")


def _disk(params: Mapping[str, Any], folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    inputs = sum(_size(folder / source["input"]) for source in params["sources"].values())
    # Text, tokens and shards, each once in the work tree and once in DVC's cache; weights, moments and best weights.
    needed = 6 * inputs + 16 * 4 * _parameters(params) + (100 << 20)
    what = f"disk: {free / 2**30:.1f} GiB free, about {needed / 2**30:.1f} GiB needed"
    return Finding(
        what, None if free > needed else f"free {(needed - free) / 2**30:.1f} GiB: `niels-gpt gc`, `dvc gc -w`"
    )


def _input(name: str, path: Path, written: str) -> Finding:
    if any(character in written for character in "*?["):
        found = bool(list(path.parent.glob(path.name)))
    else:
        found = path.exists()
    if found:
        return Finding(f"{name}: {written} ({_size(path) / 1e6:.1f} MB)")
    return Finding(f"{name}: {written} is not there", f"put the text there, or take {name} out of params.yaml")


def _hub() -> Finding:
    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    port = address.port or (443 if address.scheme == "https" else 80)
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        return Finding("hub", "HF_HUB_OFFLINE=1 is set: unset it, or have the dataset in the local cache")
    try:
        socket.create_connection((address.hostname or "", port), timeout=_PATIENCE_S).close()
    except OSError as error:
        return Finding("hub", f"{address.hostname} cannot be reached ({error}): connect, or use a local `input`")
    return Finding("hub")


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size if path.is_file() else 0


def _parameters(params: Mapping[str, Any]) -> int:
    model, V = params["model"], params["tokenizer"].get("vocab_size", 260)
    C, d_ff = model["C"], model["d_ff"]
    return int(V * C + model["L"] * (4 * C * C + 2 * C * d_ff))


def seconds_to_train(params: Mapping[str, Any]) -> dict[str, float]:
    """How long train and sft will take here: real steps on random tokens for a few seconds each."""
    runtime = params["runtime"]
    device = prepare_device(runtime["device"], threads=runtime["threads"])
    as_run = {key: runtime[key] for key in ("micro_batch_tokens", "deterministic")}
    V = params["tokenizer"].get("vocab_size", 260)
    cfg = ModelConfig(V=V, **params["model"])
    out = {}
    for stage in ("train", "sft"):
        settings = {key: value for key, value in params[stage].items() if key != "document_mask"}
        train_cfg = TrainConfig(**settings)
        step = build_step(GPT(cfg).to(device), train_cfg, Execution(device=device, compile=False, **as_run), state=None)
        x = torch.randint(0, V, (train_cfg.B, cfg.T))
        batch = Batch.of(x, x, {})
        step(batch, lr=0.0, n=0).item()
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < _MEASURED_S / 2 and steps < train_cfg.total_steps:
            step(batch, lr=0.0, n=0).item()
            steps += 1
        out[stage] = (time.perf_counter() - start) / steps * train_cfg.total_steps
    return out
