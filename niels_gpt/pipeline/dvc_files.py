"""The files that DVC empties and fills in place, mended after an interruption.

Stopped while it writes dvc.lock or .dvc/tmp/rwlock, DVC leaves the file empty or cut short, and refuses to run from
then on. So a stage that starts keeps a copy of a whole dvc.lock, and `mend` puts it back. What the copy does not know
yet DVC finds changed, and takes out of its cache of runs: the result is that of a run that was never stopped.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from niels_gpt.files.atomic import atomic_path, discard
from niels_gpt.pipeline.git import ask_git, committed
from niels_gpt.pipeline.layout import LOCK

_TMP = Path(".dvc/tmp")
_KEPT = _TMP / "dvc.lock.whole"  # git and DVC ignore .dvc/tmp
_BROKEN = _TMP / "dvc.lock.broken"
_BUSY = _TMP / "rwlock"  # who reads and writes what, as JSON
_GUARD = _TMP / "lock"  # held by DVC, but while a stage's command runs
_RUNS = Path(".dvc/cache/runs")


def keep_lock(root: Path) -> None:
    """Keep a copy of dvc.lock, where it is whole, beside the name of the committed one that it came after."""
    text = _read(root / LOCK)
    if text is None or not is_whole(text):
        return
    kept = f"# {_committed_name(root)}\n{text}"
    if kept != _read(root / _KEPT):
        # On a full disk whatever the stage writes matters more, and says so.
        with suppress(OSError), atomic_path(root / _KEPT) as temporary:
            temporary.write_text(kept, encoding="utf-8")


def is_whole(text: str) -> bool:
    """DVC's file to its end. Cut short, it ends within a line, or a record lacks something; where it was cut between
    two records, DVC misses the second by itself."""
    return read_records(text) is not None


def read_records(text: str) -> dict[str, Any] | None:
    """What a whole dvc.lock says of each stage."""
    if not text.endswith("\n"):
        return None
    try:
        tree = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        stages: dict[str, Any] = tree["stages"]
        return stages if "schema" in tree and all(map(_is_recorded, stages.values())) else None
    except (yaml.YAMLError, AttributeError, KeyError, TypeError):
        return None


def recorded(root: Path, stage: str) -> str:
    """Return what dvc.lock records of a stage, as text to compare; "" where it records nothing."""
    stages = read_records(_read(root / LOCK) or "") or {}
    return json.dumps(stages[stage], sort_keys=True) if stage in stages else ""


def _is_recorded(stage: dict[str, Any]) -> bool:
    files = [*stage.get("deps", []), *stage["outs"]]
    return "cmd" in stage and all(
        {"path", "md5", "size"} <= set(file) and ("nfiles" in file or not file["md5"].endswith(".dir"))
        for file in files
    )


def broken_files(root: Path) -> list[str]:
    """Those of DVC's own files that keep it from running."""
    text = _read(root / LOCK)
    broken = [] if text is None or is_whole(text) else [str(LOCK)]
    return [*broken, *([] if _is_json(root / _BUSY) else [str(_BUSY)]), *map(str, _half_written_runs(root))]


def mend(root: Path) -> list[str]:
    """Make DVC run again; a sentence for each thing done. Nothing is touched while DVC is at work."""
    broken = broken_files(root)
    with without_dvc(root, broken):
        done = []
        for name in broken_files(root):
            if name == str(LOCK):
                done.append(_mend_lock(root))
            else:
                discard(root / name)
                done.append(f"{name} was half-written and is deleted; DVC makes it anew")
        keep_lock(root)
    return done


def _mend_lock(root: Path) -> str:
    text = _read(root / LOCK) or ""
    if any(line.startswith("<<<<<<< ") for line in text.splitlines()):
        raise ValueError("dvc.lock holds both sides of a git merge: `git checkout --ours dvc.lock`, then `dvc repro`")
    with atomic_path(root / _BROKEN) as temporary:
        temporary.write_text(text, encoding="utf-8")
    head, _, kept = (_read(root / _KEPT) or "").partition("\n")
    # Commits made or fetched since the copy was kept know more than it does.
    in_order = [(kept, "as the last stage found it"), (committed(root, LOCK) or "", "as committed")]
    if head != f"# {_committed_name(root)}":
        in_order.reverse()
    for whole, origin in in_order:
        if is_whole(whole):
            with atomic_path(root / LOCK) as temporary:
                temporary.write_text(whole, encoding="utf-8")
            return f"{LOCK} was half-written and is back {origin}; `dvc repro` goes on from there"
    discard(root / LOCK)
    return f"{LOCK} was half-written and is deleted; `dvc repro` takes what has run out of its cache"


@contextmanager
def without_dvc(root: Path, broken: Sequence[str] = ()) -> Iterator[None]:
    """Holds DVC's own lock: what looks half-written is not just being written, and what DVC reads stays. `broken`:
    files to name where DVC is at work."""
    (root / _TMP).mkdir(parents=True, exist_ok=True)
    with (root / _GUARD).open("a+") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            files = f" on {', '.join(broken)}" if broken else ""
            raise ValueError(f"DVC is at work here{files}: wait for it, then try again") from error
        yield


def _half_written_runs(root: Path) -> list[Path]:
    """In the cache of runs, entries that never got their names, and folders without an entry: DVC takes the newest
    file of a folder for one, and falls over an empty folder."""
    found: list[Path] = []
    for folder in sorted((root / _RUNS).glob("*/*")):
        entries = sorted(folder.iterdir()) if folder.is_dir() else [folder]
        half = [entry for entry in entries if entry.name.startswith(".")]
        found += [folder] if half == entries else half
    return [path.relative_to(root) for path in found]


def _is_json(path: Path) -> bool:
    text = _read(path)
    try:
        return text is None or isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _committed_name(root: Path) -> str:
    """Git's name for the content of the committed dvc.lock."""
    return (ask_git(root, "rev-parse", f"HEAD:./{LOCK}") or "none").strip()


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
