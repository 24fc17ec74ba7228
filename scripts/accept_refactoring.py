"""`make same`: after a refactoring that changes no number, record in dvc.lock that all outputs are up to date.

Only stages whose sole change is their code are recorded; those with other parameters or inputs need `dvc repro`.
"""

import json
import subprocess
from typing import Any

from niels_gpt.pipeline import layout


def only_code_changed(status: dict[str, Any]) -> list[str]:
    """Return the stages of `dvc status --json` in which only the recorded code has changed."""
    return [stage for stage, changes in status.items() if all(map(_is_of_code, changes))]


def _is_of_code(change: Any) -> bool:
    """Return whether a change is of code alone: {"changed deps": {path: how}}, or a string like "changed command"."""
    deps = change.get("changed deps", {}) if isinstance(change, dict) else {}
    return bool(deps) and all(dep.startswith(f"{layout.CODE}/") for dep in deps)


def main() -> None:
    """Run the stage `code`, then commit to dvc.lock every stage in which only the code has changed."""
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
