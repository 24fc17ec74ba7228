"""Which of the project's files a module runs: its imports, followed as text."""

from __future__ import annotations

import ast
from pathlib import Path

# Modules that change how a stage runs but not what it computes: an edit of them must not re-tokenize a corpus.
INFRASTRUCTURE = {
    "niels_gpt/device.py",
    "niels_gpt/files/atomic.py",
    "niels_gpt/pipeline/dvc_files.py",
    "niels_gpt/files/pages.py",
    "niels_gpt/files/progress.py",
    "niels_gpt/files/sentences.py",
    "niels_gpt/train/log.py",
    "niels_gpt/train/meter.py",
    "niels_gpt/train/speed.py",
    "niels_gpt/pipeline/mistakes.py",
    "niels_gpt/pipeline/params.py",
    "niels_gpt/pipeline/stage.py",
    "niels_gpt/pipeline/yaml12.py",
}


def closure(start: Path, root: Path) -> set[str]:
    """Paths (relative to root) of `start` and all project files it imports, not looking beyond infrastructure."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        path = todo.pop()
        name = path.relative_to(root).as_posix()
        if name in seen or name in INFRASTRUCTURE or not path.read_text().strip():
            continue
        seen.add(name)
        for module in _imported(path):
            todo += _files(module, root)
    return seen


def _imported(path: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative imports are not followed here; write them out"
            modules |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def _files(module: str, root: Path) -> list[Path]:
    """The files that importing `module` runs: every package on the way, and itself."""
    parts = module.split(".")
    if parts[0] not in ("niels_gpt", "stages"):
        return []
    candidates = [root.joinpath(*parts[:i], "__init__.py") for i in range(1, len(parts) + 1)]
    candidates.append(root.joinpath(*parts).with_suffix(".py"))
    return [path for path in candidates if path.is_file()]
