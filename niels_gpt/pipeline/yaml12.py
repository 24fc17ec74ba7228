"""Read params.yaml and dvc.yaml as DVC does: YAML 1.2, by ruamel.

PyYAML speaks YAML 1.1, where `1e-05` (what `dvc exp run -S train.base_lr=1e-5` writes) is a string, `no` is false and
`010` is eight.
"""

from __future__ import annotations

from typing import Any


class DuplicateKey(ValueError):
    """A key stands twice; everything else in the document can be read."""


def parse_yaml(text: str, *, name: str, allow_duplicates: bool = False) -> Any:
    """Return the document in `text`; raise a ValueError with `name` and the place if it is not YAML.

    `allow_duplicates`: of a key that stands twice the first counts.
    """
    from ruamel.yaml import YAML  # here, so that code that reads no YAML runs without it
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="safe")
    yaml.allow_duplicate_keys = allow_duplicates
    try:
        return yaml.load(text)
    except RecursionError as error:
        raise ValueError(f"{name} is not valid YAML: it is nested too deeply") from error
    except (YAMLError, ValueError, LookupError, AttributeError) as error:  # the others for `a: !!int x`
        place = getattr(error, "problem_mark", None)
        where = f" at line {place.line + 1}, column {place.column + 1}" if place else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        if isinstance(error, DuplicateKeyError):  # ruamel goes on to show both values, which may be whole sections
            raise DuplicateKey(f"{name}{where}: {problem.partition(' with value ')[0]}, keep one") from error
        raise ValueError(f"{name} is not valid YAML{where}: {problem}") from error
