"""Checkpoints in torch's format with a SHA-256 seal, loaded with `weights_only` so that no code in a file can run.

A torch file is a zip archive, but torch does not verify the zip checksums: a file with one flipped bit in a weight
loads without an error. The archive comment, which every zip reader skips, therefore holds the SHA-256 of all bytes
before it.
"""

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

_MARK = b"sha256:"
_SEAL_BYTES = len(_MARK) + 2 * hashlib.sha256().digest_size


def save_checkpoint(
    path: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    step: int,
    config: Mapping[str, Any],
) -> None:
    """Write weights, optimizer state (if not None), step and model config, and a config.json next to the file."""
    state = None if optimizer is None else optimizer.state_dict()
    save_tensors(path, {"config": dict(config), "model": model.state_dict(), "optimizer": state, "step": step})
    write_json(Path(path).with_name("config.json"), dict(config))


def load_checkpoint(path: str | Path, device: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None, int]:
    """Return (config, model_state_dict, optimizer_state_dict or None, step), with tensors on `device`."""
    stored = load_tensors(path, device)
    if missing := {"config", "model", "optimizer", "step"} - set(stored):
        raise Damaged(path, f"is not a checkpoint of this project: it lacks {sorted(missing)}")
    return stored["config"], stored["model"], stored["optimizer"], int(stored["step"])


def load_model(path: str | Path, device: str, *, dropout: float | None = None, T: int | None = None) -> GPT:
    """Return the model of a checkpoint; `dropout` and the context length `T` override what is stored."""
    config, weights, _, _ = load_checkpoint(path, device)
    try:
        config |= {key: value for key, value in {"dropout": dropout, "T": T}.items() if value is not None}
        model = GPT(config).to(device)
        model.load_state_dict(weights)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"is not a checkpoint of this project: its weights are not those of its config ({_reason(error)})"
        raise Damaged(path, what) from error
    return model


def save_tensors(path: str | Path, values: dict[str, Any]) -> None:
    """Write a dict of tensors and plain values atomically; equal values give equal bytes."""
    with atomic_path(path) as temporary:
        try:
            torch.save(values, temporary)
            _seal(temporary)
        except (RuntimeError, OSError) as error:  # torch reports a full disk as a RuntimeError without an errno
            raise OSError(f"{path} could not be written (is the disk full?): {_reason(error)}") from error


def load_tensors(path: str | Path, device: str) -> dict[str, Any]:
    """Read what `save_tensors` or a plain `torch.save` wrote.

    Raise `Damaged` if the file is missing, truncated, corrupted, of another format, or a pickle that would run code.
    """
    if not Path(path).is_file():
        raise Damaged(path, "does not exist")
    try:
        _check_seal(Path(path))
        with Path(path).open("rb") as f:
            values = torch.load(f, map_location=device, weights_only=True)
    except Exception as error:  # other formats make the readers fail with struct.error, OSError, BadZipFile, ...
        what = f"is not a checkpoint of this project, or is damaged; nothing in it was run ({_reason(error)})"
        raise Damaged(path, what) from error
    if not isinstance(values, dict):
        raise Damaged(path, f"is not a checkpoint of this project: it holds a {type(values).__name__}")
    return values


def _seal(path: Path) -> None:
    """Append the SHA-256 of the archive to it as the zip comment."""
    with path.open("r+b") as f:
        # A zip file ends with the 2-byte length of its comment, which torch leaves empty.
        f.seek(-2, 2)
        f.write(_SEAL_BYTES.to_bytes(2, "little"))
        f.seek(0)
        digest = hashlib.file_digest(f, "sha256").hexdigest()
        f.seek(0, 2)
        f.write(_MARK + digest.encode())


def _check_seal(path: Path) -> None:
    """Raise a ValueError if the file's bytes do not match its seal; a plain `torch.save` file has none."""
    with zipfile.ZipFile(path) as archive:
        seal = archive.comment
        if not seal:
            return
    sealed, digest = path.stat().st_size - _SEAL_BYTES, hashlib.sha256()
    with path.open("rb") as f:
        for start in range(0, sealed, 1 << 20):
            digest.update(f.read(min(sealed - start, 1 << 20)))
    if seal != _MARK + digest.hexdigest().encode():
        raise ValueError("its bytes are not those that were written: the checksum at its end is another")


def _reason(error: Exception) -> str:
    """Return the first line of an error's message, at most 160 characters, or the name of its class."""
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__
