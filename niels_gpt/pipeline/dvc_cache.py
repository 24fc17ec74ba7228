"""DVC's cache of this checkout: what it has recorded, under the hashes that dvc.lock names."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cached_property
from pathlib import Path

from niels_gpt.files.sentences import read_text


class DvcCache:
    @cached_property
    def _files(self) -> Path:
        # It may be one that several checkouts share, which DVC's settings name.
        told = subprocess.check_output([sys.executable, "-m", "dvc", "cache", "dir"], text=True)
        return Path(told.strip(), "files", "md5")

    def holds(self, md5: str) -> bool:
        """Whether all of a file or folder is there."""
        if not md5.endswith(".dir"):
            return self._place(md5).is_file()
        return self._files_of(md5) is not None

    def link(self, md5: str, folder: Path) -> bool:
        """A folder as it was, in links to its files; False, and no folder, where the cache does not have all of it."""
        files = self._files_of(md5)
        for name, file in (files or {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(file.resolve())
        return files is not None

    def _files_of(self, md5: str) -> dict[str, Path] | None:
        """Of a folder, by name; None where one of them is missing."""
        try:
            files = {entry["relpath"]: self._place(entry["md5"]) for entry in json.loads(read_text(self._place(md5)))}
        except (OSError, ValueError, LookupError, TypeError, subprocess.CalledProcessError):
            return None
        return files if all(file.is_file() for file in files.values()) else None

    def _place(self, md5: str) -> Path:
        return self._files / md5[:2] / md5[2:]
