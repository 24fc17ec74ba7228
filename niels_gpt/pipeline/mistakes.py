"""Everything that is wrong in a file of parameters, a sentence each: pydantic's findings in words, and what one section
says against another."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from niels_gpt.data.mix import mix_probabilities

_SOURCE_NAME = re.compile(r"[a-z0-9_]+")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the path of keys to it, and a sentence."""

    path: tuple[str, ...]
    sentence: str


class ParamsError(ValueError):
    """Everything that is wrong in a file of parameters; `raw` is what there is of it."""

    def __init__(self, problems: list[Problem], raw: dict[str, Any]) -> None:
        super().__init__("; ".join(problem.sentence for problem in problems))
        self.problems, self.raw = tuple(problems), raw


def disagreements(raw: dict[str, Any], *, name: str) -> list[Problem]:
    """What is wrong between sections. Of the raw mapping, so that a mistake elsewhere does not hide it; what has not
    the form it should have is passed over, since that is a finding of its own."""
    tables = {table: raw[table] if isinstance(raw.get(table), dict) else {} for table in ("sources", "chats")}
    found = [*_bad_names(raw, tables), *_shared_val_names(tables), *_misfits(raw, tables["sources"])]
    for table, of in (("p_train", "sources"), ("p_val", "sources"), ("p_sft", "chats")):
        weights, names = raw.get(table), list(map(str, tables[of]))
        if isinstance(weights, dict) and names:
            found += [((table,), text) for text in _bad_weights(weights, names, table, every=table != "p_val")]
    return [Problem(path, f"{name}: {text}") for path, text in found]


_Found = Iterator[tuple[tuple[str, ...], str]]


def _bad_names(raw: dict[str, Any], tables: dict[str, dict[Any, Any]]) -> _Found:
    names = {table: list(map(str, entries)) for table, entries in tables.items()}
    for table, keys in names.items():
        for key in keys:
            if not _SOURCE_NAME.fullmatch(key):
                yield (table, key), f"{table}: the name {key!r} must match [a-z0-9_]+: it becomes a folder and a stage"
        if raw.get(table) == {}:
            yield (table,), f"{table} is empty: it needs at least one"
    for key in sorted(set(names["sources"]) & set(names["chats"])):
        yield ("chats", key), f"{key!r} stands under sources and under chats: a name may be used once"


def _shared_val_names(tables: dict[str, dict[Any, Any]]) -> _Found:
    uses: dict[str, list[str]] = {}
    for table, entries in tables.items():
        for key, entry in entries.items():
            if isinstance(val_name := _at(entry, "val_name"), str):
                uses.setdefault(val_name, []).append(f"{table}.{key}")
    for val_name, users in uses.items():
        if len(users) > 1:
            yield ("val_name",), f"val_name {val_name!r} is used by {' and '.join(users)}: each needs its own"


def _misfits(raw: dict[str, Any], sources: dict[Any, Any]) -> _Found:
    learned, T, window = _at(raw, "splice", "dataset_name"), _at(raw, "model", "T"), _at(raw, "memorize", "chunk_size")
    if isinstance(learned, str) and sources and learned not in sources:
        known = sorted(map(str, sources))
        yield ("splice",), f"splice.dataset_name is {learned!r}, which is no source; there are: {known}"
    if isinstance(T, int) and isinstance(window, int) and window > T >= 1:
        yield ("memorize",), f"memorize.chunk_size is {window}: it must fit into model.T={T}"


def _bad_weights(weights: dict[Any, Any], names: list[str], table: str, *, every: bool) -> Iterator[str]:
    numbers = {str(key): w for key, w in weights.items() if isinstance(w, int | float) and not isinstance(w, bool)}
    known = {key: weight for key, weight in numbers.items() if key in names}
    # The check stops at what it finds first, and unknown names come first.
    for part in (numbers, known) if known and known != numbers else (numbers,):
        try:
            mix_probabilities(part, names, name=table)
        except ValueError as error:
            yield str(error)
    missing = sorted(set(names) - set(map(str, weights)))
    if every and missing:
        yield f"{table} has no weight for {missing}: give each one (0 leaves a source out of the draw)"


def _at(tree: Any, *path: str) -> Any:
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def explain(problem: Any, raw: dict[str, Any], *, shape: type[BaseModel], name: str) -> Problem:
    """One sentence for one of pydantic's findings: where, what, and what would be right."""
    path = _written_path(problem["loc"], raw, missing=problem["type"] == "missing")
    where = ".".join(part if part.isprintable() else repr(part) for part in path)
    return Problem(path, f"{name}{f': {where}' if path else ''}{_what(problem, path, shape)}")


def _what(problem: Any, path: tuple[str, ...], shape: type[BaseModel]) -> str:
    """What follows the name of the key."""
    match problem["type"]:
        case "extra_forbidden":
            known = sorted({key for section in _sections_at(path[:-1], shape) for key in section.model_fields})
            if path[-1] in known:
                return " goes with another kind, not with this one: leave it out"
            near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
            return f" is not a parameter; {hint}"
        case "missing":
            return " is missing: every key is required"
        case "value_error":
            return f": {problem['ctx']['error']}"
        case "union_tag_invalid" | "union_tag_not_found":
            key = problem["ctx"]["discriminator"].strip("'")
            tags = problem["ctx"].get("expected_tags")
            return f": {key} must be one of {tags}" if tags else f".{key} is missing: it says which kind"
    wanted = problem["msg"][0].lower() + problem["msg"][1:]
    if problem["type"] in ("model_type", "dict_type", "model_attributes_type"):
        wanted = "keys and values of its own are needed here"
    return f" is {_shown(problem['input'])}: {wanted}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _written_path(loc: tuple[int | str, ...], raw: Any, *, missing: bool) -> tuple[str, ...]:
    """The path as the user wrote it. Pydantic's names the chosen member of a union too: sources.a.load.roam.glob."""
    path, node = [], raw
    for i, part in enumerate(loc):
        inside = part in node if isinstance(node, dict) else isinstance(node, list) and isinstance(part, int)
        if inside:
            node = node[part]
        if inside or (missing and i == len(loc) - 1):
            path.append(str(part))
    return tuple(path)


def _sections_at(path: tuple[str, ...], shape: type[BaseModel]) -> list[type[BaseModel]]:
    """The sections that may stand at a place: one, or those of every kind."""
    found: list[Any] = [shape]
    for part in path:
        inner: list[Any] = []
        for at in found:
            if get_origin(at) is dict:
                inner += _members(get_args(at)[1])
            elif part in getattr(at, "model_fields", {}):
                inner += _members(at.model_fields[part].annotation)
        found = inner
    return [section for section in found if hasattr(section, "model_fields")]


def _members(annotation: Any) -> list[Any]:
    """The alternatives in an annotation: itself, or what it joins by `|`."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [member for part in get_args(annotation) for member in _members(part)]
    return [annotation]
