"""Helpers shared by the commands: one-line errors, printable output, and edits of params.yaml."""

from __future__ import annotations

import hashlib
import io
import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from niels_gpt.files.atomic import write_text
from niels_gpt.files.messages import EXPECTED, read_text
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.repository import ask_git, committed
from niels_gpt.pipeline.stage import sentence_with_remedy
from niels_gpt.pipeline.yaml_files import fields_of, parse_yaml

if TYPE_CHECKING:
    from ruamel.yaml import YAML


# params.yaml is edited with ruamel, which keeps comments and the order of keys. The preset `sample` is params.yaml as
# published, which git has; any other lists its differences from `sample`, or from the preset in `based_on`.

_WHOLE, _BASE = "sample", "based_on"
WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})  # no strings in YAML 1.1 unless quoted
_TABLES = ("sources", "p_train", "p_val", "p_sft")


def known_presets(folder: Path) -> dict[str, str]:
    """Return {name: first sentence of its heading} of all presets in a folder, sorted by name."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        lines = takewhile(lambda line: line.startswith("#"), read_text(path).splitlines())
        heading = " ".join(line.lstrip("# ") for line in lines).removeprefix(f"{path.stem}: ")
        found[path.stem] = re.split(r"[.;:](?: |$)", heading)[0]
    return found


def read_preset(folder: Path, name: str, *, above: tuple[str, ...] = ()) -> str:
    """Return the complete YAML of a preset: `sample`, overlaid by its bases and itself; it is a base of `above`."""
    if name == _WHOLE:
        return read_sample(folder)
    file = folder / f"{name}.yaml"
    text = read_text(file)
    values = parse_yaml(text, name=str(file))
    base = (values.get(_BASE) if isinstance(values, dict) else None) or _WHOLE
    if base in (chain := (*above, name)):
        raise ValueError(f"{file}: {_BASE} leads back to {base!r}; it must lead to {_WHOLE}")
    if not (folder / f"{base}.yaml").is_file():
        raise ValueError(f"{file}: {_BASE} is {base!r}, which is no preset beside it")
    return complete_preset(text, sample=read_preset(folder, base, above=chain))


def read_sample(folder: Path) -> str:
    """Return params.yaml as published: the file beside the presets while it is unchanged, else from git."""
    file, current = folder / f"{_WHOLE}.yaml", folder.parent / layout.PARAMS
    named = parse_yaml(read_text(file), name=str(file))
    blob = str(named.get("blob")) if isinstance(named, dict) else "no blob"
    content = current.read_bytes() if current.is_file() else b""
    if hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest() == blob:  # as git names it
        return content.decode()
    if (text := ask_git(folder.parent, "cat-file", "blob", blob)) is None:
        raise ValueError(f"{file}: git here has no {blob[:12]}, params.yaml as published: clone the project anew")
    return text


def complete_preset(preset: str, *, sample: str) -> str:
    """Return the YAML of `sample` overlaid with the values of `preset`.

    A table of sources or weights has the preset's names only. A section of another `kind` or `by` (say, another
    tokenizer) is replaced as a whole. In all other sections, keys that the preset lacks keep the sample's values.
    """
    yaml = _yaml()
    whole, values = yaml.load(sample), yaml.load(preset)
    if not isinstance(values, dict):
        return preset
    values.pop(_BASE, None)
    _overlay(whole, values)
    return _dumped(yaml, whole)


def apply_preset(current: str, preset: str) -> str:
    """Return the YAML of `current` with the values of a complete preset.

    A section with the same keys as the preset's keeps its comments. A section with other keys (another kind of
    tokenizer, other sources) is replaced by the preset's, comments included.
    """
    yaml = _yaml()
    target, wanted = yaml.load(current), yaml.load(preset)
    if not isinstance(target, dict):
        return preset
    _update(target, wanted)
    return _dumped(yaml, target)


def keep_own_sources(preset: str, current: str) -> str:
    """Return a complete preset with the sources that `init` wrote into `current` in place of its private text."""
    yaml = _yaml()
    wanted, now = yaml.load(preset), yaml.load(current)
    there = now.get("sources", {}) if isinstance(now, dict) else {}
    private = {name: it for name, it in there.items() if it.get("remote") != layout.PUBLIC}
    own = {name: it for name, it in private.items() if it["load"].get("kind") in ("text", "chat", "dialogues")}
    weights = {name: now["p_train"].get(name, 0.0) for name, it in own.items() if it["use"] == "text"}
    replaced = [name for name, it in wanted["sources"].items() if it["remote"] != layout.PUBLIC]
    if not replaced or not weights:
        return preset
    share = sum(wanted["p_train"].pop(name, 0.0) for name in replaced) / (sum(weights.values()) or 1.0)
    for name in replaced:
        del wanted["sources"][name]
    wanted["sources"].update(own)
    wanted["p_train"].update({name: round(share * weight, 4) for name, weight in weights.items()})
    wanted["p_val"].clear()
    wanted["p_val"].update(weights)
    wanted["p_sft"].update({name: now["p_sft"].get(name, 1.0) for name in own if name not in weights})
    return _dumped(yaml, wanted)


@dataclass(frozen=True)
class Setting:
    """A value and the reason for it; a mapping is a section, whose values may be settings.

    A value that `is_default` need not be written.
    """

    value: Any
    reason: str | None = None
    is_default: bool = False


def with_settings(text: str, settings: Mapping[str, Setting]) -> str:
    """Return `text` with values set at dotted keys; a reason replaces the comment above its key; new keys come last.

    Keys of defaults are removed with the comments above them, but for the first key of a section.
    """
    yaml = _yaml()
    tree = yaml.load(text)
    for dotted, setting in settings.items():
        *parents, key = dotted.split(".")
        above, section = None, tree
        for parent in parents:
            above, section = section.ca.items.get(parent), section[parent]
        place = list(section).index(key) if key in section else -1
        if setting.is_default and place:
            if place > 0:
                _drop_comment_before(section, key, above)
                before, after = list(section)[place - 1], _take_comment_after(section, key)
                del section[key]
                if (comment := _take_comment_after(section, before)) and after:
                    comment.value = comment.value.rstrip("\n") + re.sub(r"^[^\n]*", "", after.value)
                _put_comment_after(section, before, comment or after)
            continue
        if setting.reason:
            section.fa.set_block_style()  # comments in braces are lost
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
        plain = not any(isinstance(value, Setting | Mapping) for value in setting.value.values())
        if plain and (indent >= 4 or (isinstance(section.get(key), dict) and section[key].fa.flow_style())):
            inner.fa.set_flow_style()
        section[key] = inner
        section.ca.items.setdefault(key, [None] * 4)[3] = None  # drops the comment above the old section's first key
    else:
        section[key] = CommentedSeq(setting.value) if isinstance(setting.value, list) else setting.value
    if setting.reason:
        lines = textwrap.fill(setting.reason, 116 - indent, break_long_words=False, break_on_hyphens=False)
        section.yaml_set_comment_before_after_key(key, before=lines, indent=indent)


def _drop_comment_before(section: Any, key: str, above: Any) -> None:
    """Remove the comment above a key; ruamel attaches it to the key, to the section or to the previous value."""
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
    """Copy a file that is about to be overwritten to FILE.kept-N, and return the copy's path.

    An earlier copy with the same text is reused. Return None if the file does not exist or is as committed.
    """
    if not file.is_file() or (text := read_text(file)) == committed(Path(), file):
        return None
    number = 1
    while (copy := file.with_name(f"{file.name}.kept-{number}")).exists():
        if copy.is_file() and read_text(copy) == text:
            return copy
        number += 1
    write_text(copy, text)
    return copy


def _yaml() -> YAML:
    from ruamel.yaml import YAML
    from ruamel.yaml.representer import RoundTripRepresenter

    class Representer(RoundTripRepresenter):
        """Writes None as null, where ruamel writes nothing, in this YAML alone."""

    Representer.add_representer(type(None), lambda own, _: own.represent_scalar("tag:yaml.org,2002:null", "null"))
    yaml = YAML()
    yaml.Representer = Representer
    yaml.preserve_quotes = True
    yaml.width = 4096  # never wrap a line
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def explained(values: Mapping[str, Any], annotation: Any) -> str:
    """Return values as YAML, with the help text of each key above it."""
    from ruamel.yaml.comments import CommentedMap

    yaml, tree = _yaml(), CommentedMap()
    for name, setting in _explained(values, annotation).items():
        _put_setting(tree, name, setting, indent=0)
    return _dumped(yaml, tree)


def _explained(values: Mapping[str, Any], annotation: Any) -> dict[str, Setting]:
    found = {}
    for key, field in fields_of(values, annotation).items():
        notes = [note for note in field.metadata if isinstance(note, str)]
        inner = _explained(values[key], field.annotation) if isinstance(values[key], dict) else {}
        found[key] = Setting(inner or values[key], ": ".join(notes) or None)
    return found


def _dumped(yaml: YAML, tree: Any) -> str:
    out = io.StringIO()
    yaml.dump(tree, out)
    return out.getvalue()


def _overlay(target: Any, values: Any, *, is_table: bool = False) -> None:
    for key in [key for key in target if is_table and key not in values]:
        del target[key]
    for key, value in values.items():
        old = target.get(key)
        comment = _take_comment_after(target, key) if key in target else None
        both = isinstance(value, dict) and isinstance(old, dict)
        if both and all(value.get(tag, old.get(tag)) == old.get(tag) for tag in ("kind", "by")):
            _overlay(old, value, is_table=key in _TABLES)
        else:
            _replace(target, values, key)
        _put_comment_after(target, key, comment)


def _update(target: Any, wanted: Any) -> None:
    for key in [key for key in target if key not in wanted]:
        del target[key]
    for key, value in wanted.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict) and set(value) == set(target[key]):
            _update(target[key], value)
        elif key not in target or target[key] != value or type(target[key]) is not type(value):
            comment = _take_comment_after(target, key) if key in target else None
            _replace(target, wanted, key)
            if not (isinstance(value, dict) and target[key].fa.flow_style()):  # there, it is a token of the next key
                _put_comment_after(target, key, comment)


def _replace(target: Any, source: Any, key: Any) -> None:
    """Copy a value from `source`; a section comes with its leading comments."""
    target[key] = source[key]
    if isinstance(source[key], dict):
        target.ca.items.pop(key, None)
        if key in source.ca.items:
            target.ca.items[key] = source.ca.items[key]


def _take_comment_after(section: Any, key: Any) -> Any:
    """Remove and return what follows a value: a comment beside it, a blank line, the comment above the next key."""
    tokens, slot = _tokens_after(section, key)
    token, tokens[slot] = tokens[slot], None
    return token


def _put_comment_after(section: Any, key: Any, comment: Any) -> None:
    tokens, slot = _tokens_after(section, key)
    tokens[slot] = tokens[slot] or comment


def _tokens_after(section: Any, key: Any) -> tuple[list[Any], int]:
    """Return ruamel's comment tokens of the last value nested below a key, and the index of the token after it.

    What follows a section in braces is a token of the section, not of its last value.
    """
    while isinstance(section[key], dict | list) and section[key] and not section[key].fa.flow_style():
        section = section[key]
        key = next(reversed(section)) if isinstance(section, dict) else len(section) - 1
    return section.ca.items.setdefault(key, [None] * 4), 2 if isinstance(section, dict) else 0


def refuse_foreign(path: Path, *titles: str) -> None:
    """Raise ValueError if a file exists and is not a page with one of these titles."""
    page = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    known = page.startswith("<!doctype html>") and any(f"<title>{title}" in page for title in titles)
    if path.exists() and not known:
        raise ValueError(f"{path} exists and was not written by this command: give another name")


def show_version(wanted: bool) -> None:
    """Print the version and exit if `--version` was given."""
    if wanted:
        typer.echo(f"niels-gpt {version('niels_gpt')}")
        raise typer.Exit


def print_any_text() -> None:
    """Escape characters that the terminal's encoding lacks, since a model may generate any."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


# Former names of commands. A longer name comes before a shorter one with the same beginning.
ALIASES = {
    "check": "doctor --params",
    "base": "inspect bases",
    "gc": "store --checkpoints",
    "mend": "doctor --fix --params",
    "summary": "report --text",
    "track": "report",
    "watch": "report --live",
    "tokenizer report": "inspect tokenizer",
    "inspect duplicates": "inspect documents --duplicates",
    "inspect secrets": "inspect documents --secrets",
    "inspect sft": "inspect batch --sft",
    "tokens verify": "store",
    "tokens prune": "store --prune",
}
SHORT = {"trace": ["find", "--trace"]}  # typed often, and no command of its own


class Commands(TyperGroup):
    """All commands, also under short and former names; an expected error is one line on stderr and status 1."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        args = [*SHORT.get(args[0], args[:1]), *args[1:]] if args else args
        for old, new in ALIASES.items():
            if args[: len(words := old.split())] == words:
                typer.echo(f"`niels-gpt {old}` is now `niels-gpt {new}`", err=True)
                args = [*new.split(), *args[len(words) :]]
                break
        return super().parse_args(ctx, args)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):  # normal ends of a command, and `| head`
            raise
        except EXPECTED as error:
            typer.echo(f"ERROR: {sentence_with_remedy(error)}", err=True)
            raise typer.Exit(1) from error


class PresetCommand(TyperCommand):
    """Command whose help ends with a list of the presets."""

    def format_help(self, ctx: typer.Context, formatter: object) -> None:  # type: ignore[override]
        lines = [f"{name}: {about}" for name, about in known_presets(layout.PRESETS).items()]
        self.epilog = "\n\n".join(["Presets:", *(lines or ["Run it in the project's folder."])])
        super().format_help(ctx, formatter)  # type: ignore[arg-type]
