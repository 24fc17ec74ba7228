"""`python -m niels_gpt.pipeline.repro ARGUMENTS`: `dvc repro`, which records a stage in dvc.lock fast and at once.

For each stage DVC parses and writes the whole dvc.lock with a YAML library that preserves comments (there are none):
1.3 s for the sample's, as long as a small stage takes. This module parses it in C and rewrites the stage's entry alone,
to the same bytes. The new file replaces the old one atomically, while a kill of DVC can leave an empty file. Tests load
this module into another process's DVC, so it imports nothing of the project.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_HEAD = "schema: '2.0'\nstages:\n"


@contextmanager
def modify_lock(path: str, fs: object = None) -> Iterator[dict[str, Any]]:
    """Yield the content of dvc.lock for DVC to replace stages' entries, then write it; replaces DVC's `modify_yaml`."""
    from dvc.utils.serialize import dumps_yaml, parse_yaml

    lock = Path(path)
    text = lock.read_text(encoding="utf-8") if lock.exists() else ""
    content = parse_yaml(text, path)
    before = dict(content.get("stages", {}))
    yield content
    head, *entries = re.split(r"^(?=  \S)", text, flags=re.MULTILINE)
    if head == _HEAD and len(entries) == len(before) and content.keys() == {"schema", "stages"}:
        text = _HEAD
        written = dict(zip(before, entries, strict=True))
        for name, entry in content["stages"].items():
            same = entry is before.get(name)
            text += written[name] if same else dumps_yaml({"stages": {name: entry}}).removeprefix("stages:\n")
    else:
        text = dumps_yaml(content)
    temporary = lock.parent / ".dvc/tmp" / f"{lock.name}.{os.getpid()}"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(lock)


def main() -> int:
    import dvc.dvcfile
    from dvc.cli import main as dvc_main

    dvc.dvcfile.modify_yaml = modify_lock
    return int(dvc_main(["repro", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
