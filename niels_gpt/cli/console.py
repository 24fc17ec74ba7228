"""What the commands share: errors in one sentence, printable text, and edits of params.yaml by presets and values."""

from __future__ import annotations

import io
import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from niels_gpt.files.atomic import atomic_path
from niels_gpt.files.messages import EXPECTED, read_text
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.repository import committed
from niels_gpt.pipeline.stage import sentence_with_remedy
from niels_gpt.pipeline.yaml_files import parse_yaml

if TYPE_CHECKING:
    from ruamel.yaml import YAML


# Edit params.yaml by ruamel, keeping comments and order: presets, and single values with their reasons.
#
# `sample` is whole; the others say what differs from it, or from another that they name in `based_on`.

_WHOLE, _BASE = "sample", "based_on"
_THE_SAMPLE = "the bundled text, in minutes on two cores"  # its heading is that of params.yaml, for which it is written
WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})  # no text for YAML 1.1 without quotes
_TABLES = ("sources", "chats", "p_train", "p_val", "p_sft")


def known_presets(folder: Path) -> dict[str, str]:
    """{name: the first sentence of its heading} of all in a folder, by name."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        lines = takewhile(lambda line: line.startswith("#"), path.read_text("utf-8", errors="replace").splitlines())
        heading = " ".join(line.lstrip("# ") for line in lines).removeprefix(f"{path.stem}: ")
        found[path.stem] = _THE_SAMPLE if path.stem == _WHOLE else re.split(r"[.;:](?: |$)", heading)[0]
    return found


def read_preset(folder: Path, name: str) -> str:
    """The whole set that a preset of a folder stands for."""
    chain = [name]
    while (base := _base(folder, chain[-1])) is not None:
        if base in chain:
            raise ValueError(f"{folder / f'{name}.yaml'}: {_BASE} leads back to {base!r}; it must lead to {_WHOLE}")
        chain.append(base)
    whole = read_text(folder / f"{_WHOLE}.yaml")
    for link in reversed(chain):
        whole = complete_preset(read_text(folder / f"{link}.yaml"), sample=whole)
    return whole


def _base(folder: Path, name: str) -> str | None:
    file = folder / f"{name}.yaml"
    values = parse_yaml(read_text(file), name=str(file))
    base: str | None = values.get(_BASE) if isinstance(values, dict) else None
    if base is not None and not (folder / f"{base}.yaml").is_file():
        raise ValueError(f"{file}: {_BASE} is {base!r}, which is no preset beside it")
    return base


def complete_preset(preset: str, *, sample: str) -> str:
    """The whole set that a preset stands for: the sample with its values.

    A table of sources or weights has the names of the preset, and no others; a section of another kind (a tokenizer's)
    is taken whole; of everything else, what the preset does not say is the sample's.
    """
    yaml = _yaml()
    whole, values = yaml.load(sample), yaml.load(preset)
    if not isinstance(values, dict):
        return preset
    values.pop(_BASE, None)
    _overlay(whole, values, tables=_TABLES)
    return _dumped(yaml, whole)


def apply_preset(current: str, preset: str) -> str:
    """`current` with the values of a whole preset. Where a section has the preset's keys its comments stay; where the
    keys differ (another kind of tokenizer, other sources) the section comes whole from the preset, comments and all."""
    yaml = _yaml()
    target, wanted = yaml.load(current), yaml.load(preset)
    if not isinstance(target, dict):
        return preset
    _update(target, wanted)
    return _dumped(yaml, target)


@dataclass(frozen=True)
class Setting:
    """A value, and why it is that one; a mapping is a section, whose values may be settings."""

    value: Any
    reason: str | None = None


def with_settings(text: str, settings: Mapping[str, Setting]) -> str:
    """Return `text` with values at dotted keys. A reason replaces the comment above its key; a new key comes last."""
    yaml = _yaml()
    tree = yaml.load(text)
    for dotted, setting in settings.items():
        *parents, key = dotted.split(".")
        above, section = None, tree
        for parent in parents:
            above, section = section.ca.items.get(parent), section[parent]
        comment = _take_comment_after(section, key if key in section else next(reversed(section)))
        if setting.reason and key in section:
            _drop_comment_before(section, key, above)
        _put_setting(section, key, setting, indent=2 * len(parents))
        _put_comment_after(section, key, comment)
    return _dumped(yaml, tree)


def _put_setting(section: Any, key: str, setting: Setting, *, indent: int) -> None:
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    if isinstance(setting.value, Mapping):
        inner = CommentedMap()
        for name, value in setting.value.items():
            _put_setting(inner, name, value if isinstance(value, Setting) else Setting(value), indent=indent + 2)
        if isinstance(section.get(key), dict) and section[key].fa.flow_style():
            inner.fa.set_flow_style()
        section[key] = inner
        section.ca.items.setdefault(key, [None] * 4)[3] = None  # a comment above the first key of the old section
    else:
        section[key] = CommentedSeq(setting.value) if isinstance(setting.value, list) else setting.value
    if setting.reason:
        lines = textwrap.fill(setting.reason, 116 - indent, break_long_words=False, break_on_hyphens=False)
        section.yaml_set_comment_before_after_key(key, before=lines, indent=indent)


def _drop_comment_before(section: Any, key: str, above: Any) -> None:
    """Remove the comment above a key. ruamel keeps it with the key, with the section, or behind the value before."""
    keys = list(section)
    if key in section.ca.items:
        section.ca.items[key][1] = None
    if key == keys[0]:
        section.ca.comment = None
        if above:
            above[3] = None
        return
    tokens, slot = _tokens_after(section, keys[keys.index(key) - 1])
    if tokens[slot]:
        tokens[slot].value = re.sub(r"(\n *#[^\n]*)+\n$", "\n", tokens[slot].value)


def keep_copy(file: Path) -> Path | None:
    """A copy beside a file that is about to be written over, under a name that nothing has, or an earlier copy that is
    the same; None where none is needed, since git has the file as it is, or there is none."""
    if not file.is_file() or (text := read_text(file)) == committed(Path(), file):
        return None
    number = 1
    while (copy := file.with_name(f"{file.name}.kept-{number}")).exists():
        if copy.is_file() and read_text(copy) == text:
            return copy
        number += 1
    with atomic_path(copy) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return copy


def _yaml() -> YAML:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.add_representer(
        type(None), lambda representer, _: representer.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    return yaml


def _dumped(yaml: YAML, tree: Any) -> str:
    out = io.StringIO()
    yaml.dump(tree, out)
    return out.getvalue()


def _overlay(target: Any, values: Any, *, tables: Collection[str] = (), is_table: bool = False) -> None:
    for key in [key for key in target if is_table and key not in values]:
        del target[key]
    for key, value in values.items():
        old = target.get(key)
        comment = _take_comment_after(target, key) if key in target else None
        if isinstance(value, dict) and isinstance(old, dict) and _same_kind(old, value):
            _overlay(old, value, is_table=key in tables)
        else:
            _replace(target, values, key)
        _put_comment_after(target, key, comment)


def _same_kind(old: Any, value: Any) -> bool:
    return all(value.get(key, old.get(key)) == old.get(key) for key in ("kind", "by"))


def _update(target: Any, wanted: Any) -> None:
    for key in [key for key in target if key not in wanted]:
        del target[key]
    for key, value in wanted.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict) and set(value) == set(target[key]):
            _update(target[key], value)
        elif key not in target or target[key] != value or type(target[key]) is not type(value):
            _replace(target, wanted, key)


def _replace(target: Any, source: Any, key: Any) -> None:
    """Take over a value; of a section also the comments at its head, and one line a key however it was written."""
    target[key] = source[key]
    if isinstance(source[key], dict):
        _spread(source[key])
        target.ca.items.pop(key, None)
        if key in source.ca.items:
            target.ca.items[key] = source.ca.items[key]


def _spread(section: Any) -> None:
    section.fa.set_block_style()
    for value in section.values():
        if isinstance(value, dict):
            _spread(value)


def _take_comment_after(section: Any, key: Any) -> Any:
    """Take what stands between a value and the next key: a comment beside it, a blank line, the heading of the next."""
    tokens, slot = _tokens_after(section, key)
    token, tokens[slot] = tokens[slot], None
    return token


def _put_comment_after(section: Any, key: Any, comment: Any) -> None:
    tokens, slot = _tokens_after(section, key)
    tokens[slot] = tokens[slot] or comment


def _tokens_after(section: Any, key: Any) -> tuple[list[Any], int]:
    """Return ruamel's comments of the innermost last value below a key, and the index of the one behind it."""
    while isinstance(section[key], dict | list) and section[key]:
        section = section[key]
        key = next(reversed(section)) if isinstance(section, dict) else len(section) - 1
    return section.ca.items.setdefault(key, [None] * 4), 2 if isinstance(section, dict) else 0


@contextmanager
def one_sentence() -> Iterator[None]:
    """What went wrong in one sentence, and a non-zero exit."""
    try:
        yield
    except (typer.Exit, typer.Abort, BrokenPipeError):  # how a command ends, and `| head`
        raise
    except EXPECTED as error:
        typer.echo(f"ERROR: {sentence_with_remedy(error)}", err=True)
        raise typer.Exit(1) from error


def show_version(wanted: bool) -> None:
    """`--version`, and nothing else then."""
    if wanted:
        try:
            number = version("niels_gpt")
        except PackageNotFoundError:
            number = "of a checkout that was not installed"
        typer.echo(f"niels-gpt {number}")
        raise typer.Exit


def print_any_text() -> None:
    """What a terminal's encoding cannot write is shown by number: a model may say anything."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class PresetCommand(TyperCommand):
    """Its help ends with the presets that there are."""

    def format_help(self, ctx: typer.Context, formatter: object) -> None:  # type: ignore[override]
        known = known_presets(layout.PRESETS)
        lines = [f"{name}: {about}" for name, about in known.items()] or ["Run it in the project's folder."]
        self.epilog = "\n\n".join(["Presets:", *lines])
        super().format_help(ctx, formatter)  # type: ignore[arg-type]
