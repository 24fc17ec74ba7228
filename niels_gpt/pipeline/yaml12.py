"""params.yaml as DVC itself reads it: YAML 1.2.

PyYAML speaks YAML 1.1, where `1e-05` (what `dvc exp run -S train.base_lr=1e-5` writes) is a string, `no` is false and
`010` is eight. This loader keeps PyYAML's parser and replaces its rules for plain scalars; a test holds it against
DVC's reader. (DVC's own, ruamel, is not on every machine that trains.)
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_MOST_DEPTH = 64
_MOST_DIGITS = 1000
_MOST_VALUES = 100_000  # a few lines of aliases of aliases stand for gigabytes

_RULES: tuple[tuple[str, str, str], ...] = (
    ("null", r"^(?:~|null|Null|NULL|)$", "~nN\0"),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?(?:0b[01_]+|0o?[0-7_]+|[0-9_]+|0x[0-9a-fA-F_]+)$", "-+0123456789"),
    (
        "float",
        r"^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.[0-9_]+(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+0123456789.",
    ),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own form)
    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """PyYAML's, but for a limit: it calls itself, and so would everything that walks the result."""
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise yaml.composer.ComposerError(
                problem=f"nested more than {_MOST_DEPTH} deep", problem_mark=self.peek_event().start_mark
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """PyYAML's, but for the ways in which its constructors fail on a scalar that is not what its tag says."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            raise _refusal(f"{str(node.value)[:40]!r} is no {kind}", node) from error


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node).replace("_", "")
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.lstrip("+"))
    if len(digits) > _MOST_DIGITS:  # Python itself refuses to write such a number down, in a message for example
        raise ValueError(f"a number of {len(digits)} digits")
    for prefix, base in (("0b", 2), ("0o", 8), ("0x", 16)):
        if digits.startswith(prefix):
            return sign * int(digits[2:], base)
    return sign * int(digits)  # a leading zero is only a zero


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = loader.construct_scalar(node).replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


for _tag, _pattern, _first in _RULES:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), [*_first, ""])
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


def parse_yaml(text: str, *, name: str) -> Any:
    """The document in `text`; `name` stands in the message where it is not YAML, or says a key twice."""
    document, repeated = parse_with_repeats(text, name=name)
    if repeated:
        raise ValueError("; ".join(repeated))
    return document


def parse_with_repeats(text: str, *, name: str) -> tuple[Any, list[str]]:
    """The document, the last of a repeated key counting, and a sentence for every key that is said twice."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None, []
        _check_nodes(root)
        return loader.construct_document(root), [f"{name} {repeat}" for repeat in _repeats(root)]
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        where = f" at line {place.line + 1}, column {place.column + 1}" if place else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ValueError(f"{name} is not valid YAML{where}: {problem}") from error


def _check_nodes(root: yaml.Node) -> None:
    """Refuse what a reader after this one would choke on: endless or gigantic aliases, text that no file can hold."""
    done: dict[int, tuple[int, int]] = {}
    above: set[int] = set()

    def measure(node: yaml.Node) -> tuple[int, int]:
        """(values, depth) of a node with every alias in it written out."""
        if id(node) in above:
            raise _refusal("an alias to what it stands in", node)
        if id(node) in done:
            return done[id(node)]
        if isinstance(node, yaml.ScalarNode) and any("\ud800" <= character <= "\udfff" for character in node.value):
            raise _refusal("half a character (a lone surrogate) in a text", node)
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in children for child in pair]
        above.add(id(node))
        inside = [measure(child) for child in children]
        above.discard(id(node))
        values, depth = 1 + sum(v for v, _ in inside), 1 + max((d for _, d in inside), default=0)
        if values > _MOST_VALUES:
            raise _refusal(f"more than {_MOST_VALUES:,} values, aliases written out", node)
        if depth > _MOST_DEPTH:
            raise _refusal(f"nested more than {_MOST_DEPTH} deep, aliases written out", node)
        return done.setdefault(id(node), (values, depth))

    measure(root)


def _refusal(problem: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)


def _repeats(node: yaml.Node) -> list[str]:
    found: list[str] = []
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                found.append(f"says {key.value!r} twice (again at line {key.start_mark.line + 1}): keep one")
            seen.add(key.value)
            found += _repeats(value)
    elif isinstance(node, yaml.SequenceNode):
        found += [repeat for item in node.value for repeat in _repeats(item)]
    return found
