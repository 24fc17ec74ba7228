"""params.yaml and dvc.yaml as DVC itself reads them: YAML 1.2, by ruamel.

PyYAML speaks YAML 1.1, where `1e-05` (what `dvc exp run -S train.base_lr=1e-5` writes) is a string, `no` is false and
`010` is eight. What a reader after this one would choke on is refused, in one sentence with its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported where a file is read: code that reads none runs without ruamel
    from ruamel.yaml.constructor import BaseConstructor
    from ruamel.yaml.nodes import Node

_MOST_DEPTH = 64
_NESTING = {"MappingStartEvent": 1, "SequenceStartEvent": 1, "MappingEndEvent": -1, "SequenceEndEvent": -1}
_MOST_DIGITS = 1000
_MOST_VALUES = 100_000  # a few lines of aliases of aliases stand for gigabytes
# ruamel parses in C where it can, in Python elsewhere: only one of the two ends a line at these, skips a mark of byte
# order, or heeds a version.
_READ_IN_TWO_WAYS = re.compile(r"[\x85\u2028\u2029]|(?!\A)\ufeff|^%YAML", re.MULTILINE)


def parse_yaml(text: str, *, name: str) -> Any:
    """The document in `text`; `name` stands in the message where it is not YAML, or says a key twice."""
    document, repeated = parse_with_repeats(text, name=name)
    if repeated:
        raise ValueError("; ".join(repeated))
    return document


def parse_with_repeats(text: str, *, name: str) -> tuple[Any, list[str]]:
    """The document, the first of a repeated key counting, and a sentence for every key that is said twice."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    if odd := _READ_IN_TWO_WAYS.search(text):
        line, column = text.count("\n", 0, odd.start()) + 1, odd.start() - text.rfind("\n", 0, odd.start())
        raise ValueError(
            f"{name} is not YAML for every reader at line {line}, column {column}: {odd.group()!a}, take it out"
        )
    yaml = YAML(typ="safe")
    yaml.allow_duplicate_keys = True
    try:
        _check_depth(yaml.parse(text))
        root = yaml.compose(text)
        if root is None:
            return None, []
        _check_nodes(root, yaml.constructor)
        repeats = [f"{name} {repeat}" for repeat in _repeats(root)]
        return yaml.constructor.construct_document(root), repeats
    except YAMLError as error:
        place = getattr(error, "problem_mark", None)
        where = f" at line {place.line + 1}, column {place.column + 1}" if place else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ValueError(f"{name} is not valid YAML{where}: {problem}") from error


def _check_depth(events: Iterable[Any]) -> None:
    """Refuse deep nesting before the composer calls itself so often, and everything that walks the result."""
    depth = 0
    for event in events:
        depth += _NESTING.get(type(event).__name__, 0)
        if depth > _MOST_DEPTH:
            raise _refusal(f"nested more than {_MOST_DEPTH} deep", event)


def _check_nodes(root: Node, constructor: BaseConstructor) -> None:
    """Refuse endless or gigantic aliases, text that no file can hold, and a scalar that is not what its tag says."""
    done: dict[int, tuple[int, int]] = {}
    above: set[int] = set()

    def measure(node: Node) -> tuple[int, int]:
        """(values, depth) of a node with every alias in it written out."""
        if id(node) in above:
            raise _refusal("an alias to what it stands in", node)
        if id(node) in done:
            return done[id(node)]
        for item in node.value:
            if isinstance(item, tuple) and not isinstance(item[0].value, str):
                raise _refusal("found unhashable key", item[0])
        above.add(id(node))
        inside = [measure(child) for child in _children(node)]
        above.discard(id(node))
        if isinstance(node.value, str):
            _check_scalar(node, constructor)
        values, depth = 1 + sum(v for v, _ in inside), 1 + max((d for _, d in inside), default=0)
        if values > _MOST_VALUES:
            raise _refusal(f"more than {_MOST_VALUES:,} values, aliases written out", node)
        if depth > _MOST_DEPTH:
            raise _refusal(f"nested more than {_MOST_DEPTH} deep, aliases written out", node)
        return done.setdefault(id(node), (values, depth))

    measure(root)


def _check_scalar(node: Node, constructor: BaseConstructor) -> None:
    if any("\ud800" <= character <= "\udfff" for character in node.value):
        raise _refusal("half a character (a lone surrogate) in a text", node)
    kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
    if kind == "merge":  # `<<`, which stands for the keys of another mapping
        return
    try:
        if kind == "int" and len(node.value) > _MOST_DIGITS:  # Python refuses to write such a number into a message
            raise ValueError(f"a number of {len(node.value)} digits")
        constructor.construct_object(node)
    except (ValueError, LookupError, AttributeError) as error:
        raise _refusal(f"{node.value[:40]!r} is no {kind}", node) from error


def _children(node: Node) -> list[Node]:
    """What a node holds: nothing, items, or keys and values."""
    if isinstance(node.value, str):
        return []
    return [child for item in node.value for child in (item if isinstance(item, tuple) else (item,))]


def _refusal(problem: str, at: Any) -> Exception:
    from ruamel.yaml.constructor import ConstructorError

    return ConstructorError(problem=problem, problem_mark=at.start_mark)


def _repeats(node: Node) -> list[str]:
    found, seen = [], set()
    for key in (item[0] for item in node.value if isinstance(item, tuple)):
        if key.value in seen:
            found.append(f"says {key.value!r} twice (again at line {key.start_mark.line + 1}): keep one")
        seen.add(key.value)
    return found + [repeat for child in _children(node) for repeat in _repeats(child)]
