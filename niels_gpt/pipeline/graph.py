"""dvc.yaml, read: what each stage declares, and which of them a file comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache, reduce
from typing import Any

from niels_gpt.files.damage import Damaged
from niels_gpt.files.sentences import read_text, sentence
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.yaml12 import parse_yaml

_IN_A_STORE = re.compile(r"(?:sketches|texts|tokens)/[a-z0-9_]+/[0-9a-f]{32}/")  # see places.py
_TEMPLATE = re.compile(r"\$\{([A-Za-z0-9_.]+)\}")


def declaration(name: str, key: str, raw: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What dvc.yaml says that a stage reads (one source's stage, where it runs for each): parameters by their dotted
    names, and files, with the values of params.yaml filled in."""
    declared, item = _stages(read_text(layout.DAG))[name], {}
    if "do" in declared:
        table = _table(declared)
        items = raw[table] if table else declared["foreach"]
        if not key:
            raise ValueError(f"this stage runs for one of {table or 'several'}: `dvc repro {name}@{min(items)}`")
        if key not in items:
            place = f"source {key!r} under {table} in {layout.PARAMS}" if table else f"{name}@{key} in {layout.DAG}"
            raise ValueError(f"there is no {place}; there are: {sorted(items)}")
        declared, item = declared["do"], items[key]
    # What DVC's templates may name: the parameters, and in a foreach stage its key and item.
    known = {**raw, "key": key, "item": item}

    def filled(field: str) -> tuple[str, ...]:
        return tuple(
            _TEMPLATE.sub(lambda match: str(lookup(known, match[1])), text) for text in declared.get(field, [])
        )

    return filled("params"), filled("deps")


def lookup(tree: Any, dotted: str) -> Any:
    return reduce(lambda node, part: node[part], dotted.split("."), tree)


def out_holding(path: str) -> str | None:
    """The output of a stage that a path is or lies in."""
    for pattern in _out_patterns(read_text(layout.DAG)):
        if found := re.match(pattern, path):
            return found[0].rstrip("/")
    return None


def outs_by_source(text: str) -> dict[str, list[str]]:
    """Outputs in dvc.yaml with a source's name in them, as they are written there: {out: tables of such sources}."""
    found: dict[str, list[str]] = {}
    for stage in _stages(text).values():
        table = _table(stage)
        for out in _outs(stage) if table else []:
            found.setdefault(out, []).append(table)
    return found


def sentence_with_remedy(error: BaseException) -> str:
    """What went wrong, in one line; of damaged outputs of the DAG also how to have them again."""
    said = sentence(error)
    if isinstance(error, Damaged) and layout.DAG.is_file():
        outs = sorted({out for path in error.paths if (out := out_holding(path))})
        said += f"; delete {', '.join(outs)} and run `dvc repro`" if outs else ""
        if any(_IN_A_STORE.search(path) for path in error.paths):
            said += "; `niels-gpt tokens verify` finds all that is damaged in stores, and says how to make it again"
    return said


@lru_cache(maxsize=2)  # dvc.yaml is read again when a stage ends, and is then most often what it was
def _stages(text: str) -> dict[str, Any]:
    return parse_yaml(text, name=str(layout.DAG))["stages"]


def _table(stage: Mapping[str, Any]) -> str:
    """The section of params.yaml for each of whose keys a stage runs; none, where dvc.yaml has a list of its own."""
    items = stage.get("foreach")
    return items.strip("${}") if isinstance(items, str) else ""


def _out_patterns(text: str) -> Iterator[str]:
    for stage in _stages(text).values():
        for out in _outs(stage):
            yield rf"{re.escape(out).replace(re.escape('${key}'), '[^/]+')}(?=/|$)"


def _outs(stage: Mapping[str, Any]) -> Iterator[str]:
    """As they are written, templates and all."""
    declared = stage.get("do", stage)
    for out in (out for kind in ("outs", "metrics", "plots") for out in declared.get(kind, [])):
        yield out if isinstance(out, str) else next(iter(out))
