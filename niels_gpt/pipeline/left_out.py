"""Stages that params.yaml leaves out (`sft.run: false`). DVC has no stage that a parameter takes away, and wants all
that a stage writes to be there: theirs holds nothing, and whoever reads a model asks here whether it is one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from niels_gpt.pipeline import layout

if TYPE_CHECKING:
    from niels_gpt.pipeline.stage import Stage

# By the suffix of an output, what DVC shows as nothing and does not warn of: of an empty file it would.
_NOTHING = {
    ".html": '<!doctype html><html lang="en"><meta charset="utf-8"><title>Left out</title><p>Left out.</p></html>\n',
    ".json": "{}\n",
    ".md": "Left out.\n",
    ".svg": '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>\n',
    ".tsv": "left out\n",
}


def leave_out(stage: Stage, *outs: Path) -> None:
    """Write the outputs of a stage that is not to run: a folder with a mark in it, files with nothing."""
    for out in outs:
        nothing = _NOTHING[out.suffix or ".json"]
        if out.suffix:
            stage.out(out).write_text(nothing, encoding="utf-8")
        else:
            stage.out(out).mkdir()
            (stage.out(out) / layout.LEFT_OUT).write_text(nothing, encoding="utf-8")
    stage.say("left out, as params.yaml says")


def is_left_out(folder: Path) -> bool:
    """Whether the stage that writes this folder was left out when it came to it."""
    return (folder / layout.LEFT_OUT).is_file()


def final_models() -> dict[str, Path]:
    """By name, the folders of the models that a run ends with: the pretrained one, and the tuned one if it has any."""
    return {folder.name: folder for folder in (layout.PRETRAINED, layout.TUNED) if not is_left_out(folder)}
