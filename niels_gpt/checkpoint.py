"""Checkpoints in torch's own format, read with weights_only, so that a file can hold numbers and never code.

Such a file is a zip archive, whose checksums torch does not look at: with one bit of a weight flipped it loads as if
nothing were wrong. So the archive's comment, which every reader skips, holds the sha256 of all bytes before it.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from niels_gpt.files.atomic import atomic_path, write_json
from niels_gpt.files.checks import Damaged
from niels_gpt.model.gpt import GPT

_KEYS = {"config", "model", "optimizer", "step"}
_MARK = b"sha256:"
_SEAL_BYTES = len(_MARK) + 2 * hashlib.sha256().digest_size


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
        raise Damaged(path, f"is not a checkpoint of this project: it lacks {sorted(_KEYS - set(stored))}")
    return stored["config"], stored["model"], stored["optimizer"], int(stored["step"])


def load_model(path: str | Path, device: str, *, dropout: float | None = None) -> GPT:
    """The model a checkpoint holds; with another `dropout` where it is to be trained further."""
    config, weights, _, _ = load_checkpoint(path, device)
    try:
        model = GPT(config if dropout is None else {**config, "dropout": dropout}).to(device)
        model.load_state_dict(weights)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"is not a checkpoint of this project: its weights are not those of its config ({_reason(error)})"
        raise Damaged(path, what) from error
    return model


def save_tensors(path: str | Path, values: dict[str, Any]) -> None:
    """A dict of tensors and plain values, whole or not at all. Equal values give equal bytes."""
    with atomic_path(path) as temporary:
        try:
            torch.save(values, temporary)
            _seal(temporary)
        except (RuntimeError, OSError) as error:  # torch's writer hides the errno of a full disk in a RuntimeError
            raise OSError(f"{path} could not be written (is the disk full?): {_reason(error)}") from error


def load_tensors(path: str | Path, device: str) -> dict[str, Any]:
    """What `save_tensors` or a plain torch.save wrote. A file that is missing, truncated, foreign or with a bit flipped
    is Damaged, and so is a pickle that would run code."""
    if not Path(path).is_file():
        raise Damaged(path, "is not there")
    try:
        _check_seal(Path(path))
        with Path(path).open("rb") as f:
            values = torch.load(f, map_location=device, weights_only=True)
    except Exception as error:  # on foreign bytes the readers fail in many ways: struct.error, OSError, BadZipFile, ...
        what = f"is not a checkpoint of this project, or is damaged; nothing in it was run ({_reason(error)})"
        raise Damaged(path, what) from error
    if not isinstance(values, dict):
        raise Damaged(path, f"is not a checkpoint of this project: it holds a {type(values).__name__}")
    return values


def _seal(path: Path) -> None:
    """Give the archive, which ends with the length of its empty comment, a comment: the hash of what comes before."""
    with path.open("r+b") as f:
        f.seek(-2, 2)
        f.write(_SEAL_BYTES.to_bytes(2, "little"))
        f.seek(0)
        digest = hashlib.file_digest(f, "sha256").hexdigest()
        f.seek(0, 2)
        f.write(_MARK + digest.encode())


def _check_seal(path: Path) -> None:
    """Raise where a byte is not as it was written. A plain torch.save's file has the archive's checksums alone, which
    vouch for what it holds, if not for the gaps between."""
    with zipfile.ZipFile(path) as archive:
        if not archive.comment:
            # What is marked as a folder torch does not read: it gives what lay in memory.
            damaged = archive.testzip() or next((m.filename for m in archive.infolist() if m.external_attr), None)
            if damaged is not None:
                raise ValueError(f"{damaged} in it is not what was written")
            return
        seal = archive.comment
    with path.open("rb") as f:
        digest = hashlib.sha256()
        left = path.stat().st_size - _SEAL_BYTES
        while left > 0 and (block := f.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    if seal != _MARK + digest.hexdigest().encode():
        raise ValueError("its bytes are not those that were written: the checksum at its end is another")


def _reason(error: Exception) -> str:
    """The first line of what a library says, and not much of it."""
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__
