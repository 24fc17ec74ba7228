"""`make same`: after a refactoring that changes no number, DVC is told that what was made is still what the code makes.

Only where nothing but the code of a stage differs from dvc.lock; what has other parameters or other inputs runs again.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from niels_gpt.pipeline import layout


def only_code_changed(status: dict[str, Any]) -> list[str]:
    """Of the stages that `dvc status --json` lists, those whose one change is in the record of their code."""
    return [stage for stage, changes in status.items() if all(map(_is_of_code, changes))]


def _is_of_code(change: Any) -> bool:
    """DVC's form: {"changed deps": {path: how}}, or a word like "changed command"."""
    deps = change.get("changed deps", {}) if isinstance(change, dict) else {}
    return bool(deps) and all(dep.startswith(f"{layout.CODE}/") for dep in deps)


def main() -> None:
    subprocess.run(["dvc", "repro", "--quiet", "code"], check=True)
    status = json.loads(subprocess.check_output(["dvc", "status", "--json"]))
    same = only_code_changed(status)
    if same:
        subprocess.run(["dvc", "commit", "--force", "--quiet", *same], check=True)
    for stage in sorted(set(status) - set(same)):
        print(f"{stage} differs in more than its code: `dvc repro` runs it")
    print(f"{len(same)} stages are recorded as made by the code as it is now; commit {layout.LOCK}")


if __name__ == "__main__":
    main()
