"""DVC's cache of this checkout: files under the md5 of their bytes, as dvc.lock names them."""

from __future__ import annotations

import hashlib
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

    def has(self, path: Path) -> bool:
        """Whether every byte of a file, or of a folder's files, is there."""
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        return all(self._place(_md5(file)).is_file() for file in files)

    def link(self, md5: str, folder: Path) -> bool:
        """A folder as it was, in links to its files; False, and no folder, where the cache does not have all of it."""
        try:
            files = {entry["relpath"]: self._place(entry["md5"]) for entry in json.loads(read_text(self._place(md5)))}
        except (OSError, ValueError, LookupError, TypeError, subprocess.CalledProcessError):
            return False
        if not all(file.is_file() for file in files.values()):
            return False
        for name, file in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(file.resolve())
        return True

    def _place(self, md5: str) -> Path:
        return self._files / md5[:2] / md5[2:]


def _md5(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "md5").hexdigest()
