"""Fingerprints (hashes) of each stage's code, on which the stages depend instead of on lists of files.

A stage's code is its module and all project modules it imports, directly or indirectly; imports are found by parsing,
not by running. The hash of a module ignores comments, docstrings and formatting, so that documenting a line retrains
nothing. Files that a module copies into its results (scripts and styles of a page) are hashed byte by byte.
"""

import ast
import hashlib
import json
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import niels_gpt
from niels_gpt.data.kinds import kind_files
from niels_gpt.files.checks import read_meta, sha256_file
from niels_gpt.files.messages import read_text
from niels_gpt.pipeline import layout

FILES = layout.CODE / "files.json"  # {file: sha256} of all records and of the files they describe

_PACKAGES = ("niels_gpt", "stages")
_KINDS = "niels_gpt/data"  # has a module for each source kind
# Code that affects how a stage runs but not what it computes: edits there rerun nothing.
_NEUTRAL = (
    "niels_gpt/__init__.py",
    "niels_gpt/cli/",
    "niels_gpt/device.py",
    "niels_gpt/jobs/",
    "niels_gpt/files/",
    "niels_gpt/pipeline/",
    "niels_gpt/train/meter.py",
)
# Other files that a module reads, as part of its code.
_READS = {
    "niels_gpt/report/page.py": "niels_gpt/report/web/**/*",
    "niels_gpt/eval/card.py": "niels_gpt/eval/*.tsv",
    "niels_gpt/leak/page.py": "niels_gpt/leak/leak.html",
    "niels_gpt/leak/memorized.py": "niels_gpt/leak/pz.html",
    "niels_gpt/data/secrets/forms.py": "niels_gpt/data/secrets/*.tsv",
}
_NOT_NEUTRAL = ("niels_gpt/pipeline/training.py",)  # decides what is trained and written
# Fields of a syntax tree to ignore: redundant ones, and those that only newer Python versions have.
_NOT_SAID = ("ctx", "kind", "type_comment", "type_params")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_HOLDS_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)


def code_root() -> Path:
    """Return the folder with niels_gpt/ and stages/: of the clone, or elsewhere of the installed package."""
    return Path() if Path("stages").is_dir() else Path(niels_gpt.__file__).parent.parent


def describe_code(root: Path) -> dict[str, dict[str, str]]:
    """Return {fingerprint name: {file: hash}}; the name is a stage ("train"), or "load/roam" for a source kind."""
    stages = sorted(path.stem for path in (root / "stages").glob("*.py") if path.stem not in ("__init__", "code"))
    kinds = {f"load/{kind}": code_of("load", root, kind=kind) for kind in kind_files(root / _KINDS)}
    return kinds | {name: code_of(name, root) for name in stages if name != "load"}


def code_of(stage: str, root: Path, *, kind: str = "") -> dict[str, str]:
    """Return {file: hash} of a stage's code; for the load stage, including the module of one source kind."""
    start = [root / "stages" / f"{stage}.py", *([kind_files(root / _KINDS)[kind]] if kind else [])]
    files = closure(start, root)
    inlined = {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for module, pattern in _READS.items()
        if module in files
        for path in root.glob(pattern)
        if path.is_file() and path.name not in layout.UNWATCHED
    }
    modules = {file: fingerprint(read_text(root / file)) for file in files}
    return dict(sorted((modules | inlined).items()))


def closure(start: Collection[Path], root: Path) -> set[str]:
    """Return the paths, relative to `root`, of the files in `start` and all they import, skipping neutral files."""
    seen: set[str] = set()
    todo = list(start)
    while todo:
        path = todo.pop()
        name = path.relative_to(root).as_posix()
        neutral = name.startswith(_NEUTRAL) and name not in _NOT_NEUTRAL
        if name in seen or neutral or not read_text(path).strip():
            continue
        seen.add(name)
        todo += imported_files(path, root)
    return seen


def imported_files(path: Path, root: Path) -> list[Path]:
    """Return the project files that a file imports anywhere in it, including the packages they are in."""
    modules = _imported(read_text(path), path.relative_to(root).as_posix())
    return [file for module in modules for file in _files(module, root)]


@lru_cache(maxsize=512)  # most modules are part of many stages
def fingerprint(source: str) -> str:
    """Return the hash of a module's syntax tree; unlike `ast.dump`, it is the same in every Python version."""
    said = json.dumps(_said(_parsed(source)), separators=(",", ":"))
    return hashlib.sha256(said.encode("utf-8", errors="surrogatepass")).hexdigest()


@contextmanager
def holding_to(record: Path) -> Iterator[None]:
    """Check that the code that runs in this context is the recorded code.

    Files are checked at the start, and files imported later at the end. Edits in between to modules that are already
    imported do not affect the run and are allowed.
    """
    recorded, root = read_meta(record), code_root()
    then = read_meta(FILES) if FILES.is_file() else {}
    places = {str(record): record, **{file: root / file for file in recorded}}
    # Files that are unchanged to the byte are not parsed, which takes longer than many a stage.
    if not all(path.is_file() and sha256_file(path) == then.get(file) for file, path in places.items()):
        stage, _, kind = record.relative_to(layout.CODE).with_suffix("").as_posix().partition("/")
        now = code_of(stage, root, kind=kind)
        if changed := sorted(file for file in {*recorded, *now} if recorded.get(file) != now.get(file)):
            raise ValueError(f"{', '.join(changed)} changed since {record} was written: `dvc repro` writes it anew")
    imported = _imported_files()
    yield
    late = sorted(file for file in _imported_files() - imported if file in recorded)
    if changed := [file for file in late if fingerprint(read_text(root / file)) != recorded[file]]:
        raise ValueError(f"{', '.join(changed)} changed before the stage came to import it: run again")


def _imported_files() -> set[str]:
    own = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in _PACKAGES]
    root, files = code_root(), (getattr(module, "__file__", None) for module in own)
    return {os.path.relpath(file, root) for file in files if file}


@lru_cache(maxsize=512)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _said(node: Any) -> Any:
    """Return a syntax tree as nested lists: the type of each node, and its fields that are set."""
    if isinstance(node, list):
        return [_said(item) for item in node]
    if not isinstance(node, ast.AST):
        return f"{type(node).__name__} {node!r}"
    parts = {name: value for name, value in ast.iter_fields(node) if name not in _NOT_SAID}
    if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        parts["body"] = parts["body"][1:]
    if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Annotated":  # strings are help texts
        noted = getattr(node.slice, "elts", [])
        parts["slice"] = [note for note in noted if not isinstance(getattr(note, "value", None), str)]
    if isinstance(node, ast.JoinedStr):  # Python 3.12.1 appends an empty string, others do not
        parts["values"] = [part for part in node.values if getattr(part, "value", None) != ""]
    return [type(node).__name__, *([name, _said(part)] for name, part in parts.items() if part not in (None, []))]


@lru_cache(maxsize=512)
def _imported(source: str, name: str) -> tuple[str, ...]:
    modules: list[str] = []
    for node in _run(_parsed(source)):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise ValueError(f"{name}: write the import of line {node.lineno} out; relative ones are not followed")
            modules += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(modules)


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all statements in it, except those under `if TYPE_CHECKING`."""
    yield node
    if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
        return
    for part in ast.iter_child_nodes(node):
        if isinstance(part, _HOLDS_STATEMENTS):
            yield from _run(part)


def _files(module: str, root: Path) -> list[Path]:
    """Return the files that importing `module` runs: the module and every package above it."""
    parts = module.split(".")
    if parts[0] not in _PACKAGES:
        return []
    candidates = [root.joinpath(*parts[:i], "__init__.py") for i in range(1, len(parts) + 1)]
    candidates.append(root.joinpath(*parts).with_suffix(".py"))
    return [path for path in candidates if path.is_file()]
