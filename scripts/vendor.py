"""Fetch the browser's libraries from npm into niels_gpt/report/web/vendor, unchanged, with a record of each.

Run: python -m scripts.vendor        (needs npm; a test compares the files with the record)
Users do not need npm: the files are part of the package, and pages load them from there alone.
"""

import hashlib
import json
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_gpt.files.atomic import write_json

VENDOR = Path("niels_gpt/report/web/vendor")
RECORD = VENDOR / "vendored.json"


@dataclass(frozen=True)
class Library:
    """An npm package at a version, and the files to take from it."""

    name: str
    version: str
    licence: str  # SPDX identifier; the chosen one if a package offers several
    files: tuple[str, ...]


LIBRARIES = (
    Library("uplot", "1.6.32", "MIT", ("dist/uPlot.iife.min.js", "dist/uPlot.min.css")),
    Library("marked", "18.2.0", "MIT", ("lib/marked.esm.js",)),
    Library("dompurify", "3.4.17", "Apache-2.0", ("dist/purify.es.mjs",)),
)


def fetch(library: Library, to: Path) -> dict[str, Any]:
    """Write a library's files to `to` and return its entry in the record."""
    with tempfile.TemporaryDirectory() as folder:
        command = ("npm", "pack", "--json", f"{library.name}@{library.version}")
        packed = json.loads(subprocess.check_output(command, cwd=folder, stderr=subprocess.DEVNULL))[0]
        with tarfile.open(Path(folder) / packed["filename"]) as archive:
            texts = {name: _read(archive, f"package/{name}") for name in (*library.files, "LICENSE")}
    for name in library.files:
        (to / Path(name).name).write_bytes(texts[name])
    return {
        "version": library.version,
        "integrity": packed["integrity"],  # of the whole package, as npm states it
        "licence": library.licence,
        "files": {Path(name).name: hashlib.sha256(texts[name]).hexdigest() for name in library.files},
        "licence_text": texts["LICENSE"].decode("utf-8"),
    }


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.extractfile(name)
    assert member is not None, f"{name} is a file"
    return member.read()


def main() -> None:
    VENDOR.mkdir(parents=True, exist_ok=True)
    for old in VENDOR.iterdir():
        old.unlink()
    write_json(RECORD, {library.name: fetch(library, VENDOR) for library in LIBRARIES})
    for path in sorted(VENDOR.iterdir()):
        print(f"{path.stat().st_size:>8,} bytes  {path}")


if __name__ == "__main__":
    main()
