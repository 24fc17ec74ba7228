"""The models of this checkout: what training wrote, and exports beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from niels_gpt.files.damage import Damaged
from niels_gpt.pipeline import layout

if TYPE_CHECKING:
    from niels_gpt.model.gpt import GPT


def model_folders() -> list[str]:
    """Those in models/, and exports in the working folder."""
    trained = sorted(layout.MODELS.glob(f"*/{layout.CONFIG}"))
    exported = (path for path in sorted(Path().glob(f"*/{layout.CONFIG}")) if (path.parent / _WEIGHTS).is_file())
    return [str(path.parent) for path in (*trained, *exported)]


def check_model(folder: str) -> None:
    """Refuse a folder that holds no model and never will, where others do."""
    planned = Path(os.path.relpath(folder)) in layout.MODEL_OF.values()
    if not planned and not (Path(folder) / layout.CONFIG).is_file() and (known := model_folders()):
        raise ValueError(f"{folder} holds no model; these do: {', '.join(known)}")


def open_models(files: Mapping[str, Path], device: str, *, V: int, dropout: float | None = None) -> dict[str, GPT]:
    """Load the weights of a stage by name; refuse those of another vocabulary than V, or of another shape than the
    first: further training keeps the pretrained model's."""
    from niels_gpt.checkpoint import load_model

    models: dict[str, GPT] = {}
    for name, file in files.items():
        model = models[name] = load_model(file, device, dropout=dropout)
        if model.cfg.V != V:
            raise Damaged(
                file,
                f"is a model of {model.cfg.V} tokens, and {layout.TOKENIZER} a tokenizer of {V}: they do not belong "
                "together",
            )
        first, own = (asdict(each.cfg) for each in (next(iter(models.values())), model))
        other = [key for key in own if own[key] != first[key] and key != "dropout"]
        if other:
            own_values, first_values = (", ".join(f"{key}={of[key]}" for key in other) for of in (own, first))
            raise Damaged(
                file,
                f"is a model with {own_values}, and {next(iter(files.values()))} has {first_values}: one is foreign",
            )
    return models


_WEIGHTS = "model.safetensors"  # of an export
