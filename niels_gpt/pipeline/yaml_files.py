"""Strict parsing of params.yaml and dvc.yaml (YAML 1.2), and validation errors as one sentence each."""

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

# ruamel parses YAML 1.2, as DVC does. PyYAML parses YAML 1.1, where `1e-05` (which `dvc exp run -S train.base_lr=1e-5`
# writes) is a string, `no` is false and `010` is 8.


def parse_yaml(text: str, *, name: str) -> Any:
    """Return the document in `text`; raise a ValueError with `name`, line and column if it is not YAML."""
    from ruamel.yaml import YAML  # lazy: code that reads no YAML runs without it
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe").load(text)
    except (YAMLError, ValueError) as error:
        place = getattr(error, "problem_mark", None)
        where = f" at line {place.line + 1}, column {place.column + 1}" if place else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        problem = problem.partition(" with value ")[0]  # a duplicate key: ruamel quotes both values, maybe sections
        raise ValueError(f"{name} is not valid YAML{where}: {problem}") from error


@dataclass(frozen=True)
class Problem:
    """One error: the path of keys to it, and a sentence."""

    path: tuple[str, ...]
    sentence: str


def is_sound(path: tuple[str, ...], wrong: Collection[tuple[str, ...]]) -> bool:
    """Return whether no invalid path in `wrong` is at, below or above `path`."""
    return not any(bad[: len(path)] == path[: len(bad)] for bad in wrong)


class ParamsError(ValueError):
    """All errors in a file of parameters; `raw` is what could be parsed."""

    def __init__(self, problems: list[Problem], raw: dict[str, Any]) -> None:
        super().__init__("; ".join(problem.sentence for problem in problems))
        self.problems, self.raw = tuple(problems), raw


def explain(problem: Any, raw: dict[str, Any], *, shape: type[BaseModel], name: str) -> Problem:
    """Return one of pydantic's errors as a sentence: where, what is wrong, and what would be valid."""
    path = _written_path(problem["loc"], raw, missing=problem["type"] == "missing")
    where = ".".join(part if part.isprintable() else repr(part) for part in path)
    return Problem(path, f"{name}{f': {where}' if path else ''}{_what(problem, path, shape)}")


def _what(problem: Any, path: tuple[str, ...], shape: type[BaseModel]) -> str:
    """Return the part of the sentence after the key."""
    match problem["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            known = sorted({key for section in _sections_at(path[:-1], shape) for key in keys_of(section)})
            if path[-1] in known:
                return " goes with another kind, not with this one: leave it out"
            near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
            return f" is not a parameter; {hint}"
        case "missing":
            return " is missing: it has no default"
        case "value_error":
            return f": {problem['ctx']['error']}"
        case "union_tag_invalid" | "union_tag_not_found":
            key = problem["ctx"]["discriminator"].strip("'")
            tags = problem["ctx"].get("expected_tags")
            return f": {key} must be one of {tags}" if tags else f".{key} is missing: it says which kind"
    wanted = problem["msg"][0].lower() + problem["msg"][1:]
    if problem["type"] in ("model_type", "dict_type", "model_attributes_type", "dataclass_type"):
        wanted = "keys and values of its own are needed here"
    given = repr(problem["input"])
    return f" is {given if len(given) <= 80 else f'{given[:80]}...'}: {wanted}"


def _written_path(loc: tuple[int | str, ...], raw: Any, *, missing: bool) -> tuple[str, ...]:
    """Return the path as the user wrote it.

    Pydantic's path also names the chosen member of a union: sources.a.load.roam.glob.
    """
    path, node = [], raw
    for i, part in enumerate(loc):
        inside = part in node if isinstance(node, dict) else isinstance(node, list) and isinstance(part, int)
        if inside:
            node = node[part]
        if inside or (missing and i == len(loc) - 1):
            path.append(str(part))
    return tuple(path)


def _sections_at(path: tuple[str, ...], shape: type[BaseModel]) -> list[Any]:
    """Return the sections allowed at a path: one, or one per kind."""
    found: list[Any] = [shape]
    for part in path:
        inner: list[Any] = []
        for at in found:
            if get_origin(at) is dict:
                inner += members(get_args(at)[1])
            elif field := keys_of(at).get(part):
                inner += members(field.annotation)
        found = inner
    return found


def with_defaults(value: Any, annotation: Any, *, seed: Any) -> Any:
    """Return a value with the defaults of all keys that are left out, in the schema's order; nothing is checked.

    The default of a `seed` is `seed`, except in `load`: whether a source samples depends on its kind.
    """
    fields = fields_of(value, annotation)
    known = {name: default_of(field) for name, field in fields.items()}
    if "seed" in known and seed is not ...:
        known["seed"] = seed
    full = {name: part for name in fields if (part := value.get(name, known[name])) is not ...}
    for name, part in full.items():
        full[name] = with_defaults(part, fields[name].annotation, seed=... if name == "load" else seed)
    return {**full, **{name: part for name, part in value.items() if name not in full}} if fields else value


def default_at(dotted: str, shape: type[BaseModel]) -> Any:
    """Return the default of a key, by its dotted name; `...` if it has none."""
    *parents, key = dotted.split(".")
    found = (keys_of(section).get(key) for section in _sections_at(tuple(parents), shape))
    return next((default_of(field) for field in found if field), ...)


def fields_of(value: Any, annotation: Any) -> dict[str, FieldInfo]:
    """Return the fields of the section that a mapping is, by its `kind` or `by`; {} if it is none."""
    for shape in members(annotation) if isinstance(value, dict) else ():
        if get_origin(shape) is dict:
            return {key: FieldInfo.from_annotation(get_args(shape)[1]) for key in value}
        fields = keys_of(shape)
        if all(value.get(tag) in get_args(fields[tag].annotation) for tag in ("kind", "by") if tag in fields):
            return fields
    return {}


def keys_of(section: Any) -> dict[str, FieldInfo]:
    """Return the fields of a section by their keys in params.yaml; {} for any other type."""
    fields = getattr(section, "__pydantic_fields__", {})
    return {field.alias or name: field for name, field in fields.items()}


def default_of(field: FieldInfo) -> Any:
    """Return the default of a key as a plain value; `...` if it has none."""
    return ... if field.is_required() else to_jsonable_python(field.get_default(call_default_factory=True))


def members(annotation: Any) -> list[Any]:
    """Return the alternatives in an annotation: the members of a union, or the annotation itself."""
    if get_origin(annotation) is Annotated:
        return members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [member for part in get_args(annotation) for member in members(part)]
    return [annotation]
