"""Whole parameter sets, written into params.yaml without losing what a person wrote around the values."""

from __future__ import annotations

import io
from typing import Any


def apply_preset(current: str, preset: str) -> str:
    """`current` with the preset's values. Where a section has the preset's keys its comments stay; where the keys
    differ (another kind of tokenizer, other sources) the section comes whole from the preset, comments and all."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.add_representer(
        type(None), lambda representer, _: representer.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    target, wanted = yaml.load(current), yaml.load(preset)
    if not isinstance(target, dict):
        return preset
    _update(target, wanted)
    out = io.StringIO()
    yaml.dump(target, out)
    return out.getvalue()


def _update(target: Any, wanted: Any) -> None:
    for key in [key for key in target if key not in wanted]:
        del target[key]
    for key, value in wanted.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict) and set(value) == set(target[key]):
            _update(target[key], value)
        elif key not in target or target[key] != value or type(target[key]) is not type(value):
            target[key] = value
