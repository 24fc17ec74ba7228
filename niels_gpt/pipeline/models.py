"""The models of this checkout: what training wrote, and exports beside it."""

from __future__ import annotations

import os
from pathlib import Path

from niels_gpt.pipeline import layout


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


_WEIGHTS = "model.safetensors"  # of an export
