"""Checkpoints: torch's own format, read with weights_only, so that a file can hold numbers and never code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from niels_gpt.atomic import atomic_path, write_json
from niels_gpt.model.gpt import GPT

_KEYS = {"config", "model", "optimizer", "step"}


def save_checkpoint(
    path: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    step: int,
    config: Mapping[str, Any],
) -> None:
    """Weights, optimizer state (None leaves it out), step and the model's config; config.json beside it as well."""
    path = Path(path)
    save_tensors(
        path,
        {
            "config": dict(config),
            "model": model.state_dict(),
            "optimizer": None if optimizer is None else optimizer.state_dict(),
            "step": step,
        },
    )
    write_json(path.with_name("config.json"), dict(config))


def load_checkpoint(path: str | Path, device: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None, int]:
    """(config, model_state_dict, optimizer_state_dict or None, step)."""
    stored = load_tensors(path, device)
    if not set(stored) >= _KEYS:
        raise ValueError(f"{path} is not a checkpoint of this project: it lacks {sorted(_KEYS - set(stored))}")
    return stored["config"], stored["model"], stored["optimizer"], int(stored["step"])


def load_model(path: str | Path, device: str, *, dropout: float | None = None) -> GPT:
    """The model a checkpoint holds; with another `dropout` where it is to be trained further."""
    config, weights, _, _ = load_checkpoint(path, device)
    model = GPT(config if dropout is None else {**config, "dropout": dropout}).to(device)
    model.load_state_dict(weights)
    return model


def save_tensors(path: str | Path, values: dict[str, Any]) -> None:
    """A dict of tensors and plain values, whole or not at all."""
    with atomic_path(path) as temporary:
        try:
            torch.save(values, temporary)
        except RuntimeError as error:  # torch's writer hides the errno of a full disk in a RuntimeError
            raise OSError(f"{path} could not be written (is the disk full?): {str(error).splitlines()[0]}") from error


def load_tensors(path: str | Path, device: str) -> dict[str, Any]:
    """What `save_tensors` wrote. A truncated or foreign file, or a pickle that would run code, is a ValueError."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    with Path(path).open("rb") as f:
        try:
            values = torch.load(f, map_location=device, weights_only=True)
        except Exception as error:  # on foreign bytes torch's reader fails in many ways: struct.error, OSError, ...
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ValueError(
                f"{path} is not a checkpoint of this project, or is damaged; nothing in it was run ({reason[:160]})"
            ) from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} is not a checkpoint of this project: it holds a {type(values).__name__}")
    return values
