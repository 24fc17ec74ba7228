"""What a source may have as its `input`: files that DVC can watch and a loader can read."""

from __future__ import annotations

import os
from typing import Any

from niels_gpt.data.hub import HubSettings, resolve_revision
from niels_gpt.data.readers.files import entries_of, file_faults, name_fault
from niels_gpt.pipeline import layout


def located(path: str, settings: Any) -> tuple[str, str | None]:
    """Where a source is read from: (its hub dataset, the commit), or (its input, None), which must be well."""
    if isinstance(settings, HubSettings) and settings.dataset is not None:
        config = getattr(settings, "config", None)
        return settings.dataset, resolve_revision(settings.dataset, settings.revision, name=config)
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist: put the source's text there, or take it out of params.yaml")
    if faults := check_input(path):
        more = f" (and {len(faults) - 1} more: niels-gpt doctor names them all)" if faults[1:] else ""
        raise ValueError(faults[0] + more)
    return path, None


def check_input(path: str) -> list[str]:
    """What is wrong with the file or folder of a source, a sentence each; nothing where it can be read and watched.

    DVC reads every file of a folder that it watches, whatever its name, before a stage can say a word: at a FIFO it
    waits for ever. A linked folder it passes over, so that text behind the link would change unseen. Links to files
    are followed and watched.
    """
    if not os.path.isdir(path):
        return list(file_faults(path))
    faults: list[str] = []
    folders = [path]
    while folders:
        for entry in entries_of(folders.pop()):
            if entry.name in layout.UNWATCHED:
                continue
            hidden = any(part.startswith(".") for part in os.path.relpath(entry.path, path).split(os.sep))
            if not os.path.isdir(entry.path):
                faults += file_faults(entry.path)
            elif fault := name_fault(entry.path):
                faults.append(fault)
            elif not entry.is_symlink():
                folders.append(entry.path)
            elif not hidden:  # hidden ones nobody reads
                faults.append(
                    f"{entry.path} is a linked folder, which DVC does not watch: put the folder itself there, or make "
                    f"a source of {os.path.realpath(entry.path)}"
                )
    return sorted(faults)
