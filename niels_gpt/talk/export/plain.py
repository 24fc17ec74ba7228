"""Export in the project's own form, which `open_talker` opens again."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from niels_gpt.config import to_dict
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checksums import write_sums
from niels_gpt.talk.talker import Talker
from niels_gpt.tokenizer.folder import tokenizer_file


def export_model(talker: Talker, folder: Path, *, tokenizer: Path, card: str) -> None:
    """model.safetensors, config.json, the tokenizer's file, README.md and SHA256SUMS."""
    folder.mkdir(parents=True)
    weights = talker.model.state_dict()
    if talker.model.cfg.tied:
        del weights["lm_head.weight"]  # it is the embedding
    save_weights(folder, weights)
    write_json(folder / "config.json", {**to_dict(talker.model.cfg), "renderer": talker.renderer})
    file = tokenizer_file(tokenizer)
    shutil.copy(file, folder / file.name)
    (folder / "README.md").write_text(card, encoding="utf-8")
    write_sums(folder)


def save_weights(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    file = folder / "model.safetensors"
    try:
        save_file({name: value.contiguous() for name, value in weights.items()}, file, metadata={"format": "pt"})
    except SafetensorError as error:  # the writer's own, which hides the errno of a full disk
        raise OSError(f"{file} could not be written (is the disk full?): {error}") from error
