"""Whether a run came out as the one that is committed: two dvc.lock files, compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from niels_gpt.files.sentences import read_text
from niels_gpt.pipeline.git import changed, committed
from niels_gpt.pipeline.layout import LOCK, METRICS
from niels_gpt.pipeline.yaml12 import parse_yaml

_LAST_OF_THE_DATA = "mix"


def what_is_committed(root: Path) -> list[str]:
    """What of the last run is as committed, and how to commit the rest; nothing where that cannot be known."""
    try:
        locks = committed(root, LOCK) or "", read_text(root / LOCK)
        before, now = (parse_yaml(text, name=str(LOCK)) for text in locks)
        told = compare_runs(now, before)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # no git, no commit, half a dvc.lock
        told = []
    return [*told, *offer_baseline(changed(root, LOCK, METRICS))]


def compare_runs(now: Mapping[str, Any], committed: Mapping[str, Any]) -> list[str]:
    """Sentences about the data and about what was trained on them; none where one of the runs did not get that far."""
    stages, others = (_without_code(lock.get("stages") or {}) for lock in (now, committed))
    if _LAST_OF_THE_DATA not in stages or _LAST_OF_THE_DATA not in others:
        return []
    data = _up_to(_LAST_OF_THE_DATA, stages) | _up_to(_LAST_OF_THE_DATA, others)
    trained = (set(stages) | set(others)) - data
    other_data = _differing(data, stages, others)
    return [
        _told("data", other_data, _reason(data, stages, others) or "though all that goes into them is the same"),
        _told(
            "weights and their metrics",
            _differing(trained, stages, others),
            _reason(trained, stages, others)
            or (
                "since the data did not"
                if other_data
                else "as they must on another kind of CPU, which rounds otherwise"
            ),
        ),
    ]


def offer_baseline(changed: Sequence[str]) -> list[str]:
    """How to record a run of which these files differ from the last commit. Nobody commits for its owner."""
    if not changed:
        return []
    shown = ", ".join(changed[:2]) + (f" and {len(changed) - 2} more" if len(changed) > 2 else "")
    return [
        f"This run is not in git yet ({shown}).",
        "`make baseline` commits it, and nothing else: experiments are then compared with what this machine makes.",
    ]


def _without_code(stages: Mapping[str, Any]) -> Mapping[str, Any]:
    """The records of code are no data: they are what goes into the other stages from outside."""
    return {name: stage for name, stage in stages.items() if name != "code"}


def _told(what: str, differing: list[str], reason: str) -> str:
    if not differing:
        return f"The {what} came out as committed, byte for byte."
    shown = ", ".join(differing[:4]) + (f" and {len(differing) - 4} more" if len(differing) > 4 else "")
    return f"The {what} did not come out as committed, {reason}: {shown}."


def _differing(names: set[str], stages: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    ours, theirs = (_hashes(run, names, "outs") for run in (stages, others))
    return sorted(path for path in {*ours, *theirs} if ours.get(path) != theirs.get(path))


def _reason(names: set[str], stages: Mapping[str, Any], others: Mapping[str, Any]) -> str:
    """Which stages were given something else; nothing, where none was."""
    made = {path for run in (stages, others) for path in _hashes(run, set(run), "outs")}
    changed = sorted(name for name in names if _inputs(stages, name, made) != _inputs(others, name, made))
    return f"since the parameters, code or text of {', '.join(changed)} are others" if changed else ""


def _up_to(name: str, stages: Mapping[str, Any]) -> set[str]:
    """A stage and all those whose outputs it is made of."""
    makers = {path: stage for stage in stages for path in _hashes(stages, {stage}, "outs")}
    found, todo = set(), [name]
    while todo:
        stage = todo.pop()
        if stage not in found:
            found.add(stage)
            deps = _hashes(stages, {stage}, "deps")
            todo += [maker for path, maker in makers.items() if any(_within(path, dep) for dep in deps)]
    return found


def _within(path: str, other: str) -> bool:
    """Whether one of two paths is the other, or lies in it."""
    return path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/")


def _hashes(stages: Mapping[str, Any], names: set[str], kind: str) -> dict[str, str]:
    entries = [entry for name in names for entry in (stages.get(name) or {}).get(kind, [])]
    return {entry["path"]: entry.get("md5", "") for entry in entries}


def _inputs(stages: Mapping[str, Any], name: str, made: set[str]) -> tuple[Any, dict[str, str]]:
    """What goes into a stage from outside: parameters, code and text, not what another stage made."""
    deps = _hashes(stages, {name}, "deps")
    outside = {path: md5 for path, md5 in deps.items() if not any(_within(path, out) for out in made)}
    return (stages.get(name) or {}).get("params"), outside
