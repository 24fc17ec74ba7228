"""Helpers shared by the commands: one-line errors, printable output, and edits of params.yaml."""

import hashlib
import io
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from importlib.metadata import version
from itertools import count, takewhile
from operator import getitem
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import CommentMark
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.tokens import CommentToken
from typer.core import TyperCommand, TyperGroup

from niels_gpt.files.atomic import write_text
from niels_gpt.files.messages import EXPECTED, read_text
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.repository import ask_git, committed
from niels_gpt.pipeline.stage import sentence_with_remedy
from niels_gpt.pipeline.yaml_files import default_at, fields_of, parse_yaml

# params.yaml is edited with ruamel, which keeps comments and the order of keys. The preset `sample` is params.yaml as
# published, which git has; any other lists its differences from `sample`, or from the preset in `based_on`.

_WHOLE, _BASE = "sample", "based_on"
WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})  # no strings in YAML 1.1 unless quoted


def known_presets(folder: Path) -> dict[str, str]:
    """Return {name: first sentence of its heading} of all presets in a folder, sorted by name."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        lines = takewhile(lambda line: line.startswith("#"), read_text(path).splitlines())
        heading = " ".join(line.lstrip("# ") for line in lines).removeprefix(f"{path.stem}: ")
        found[path.stem] = re.split(r"[.;:](?: |$)", heading)[0]
    return found


def read_preset(folder: Path, name: str) -> str:
    """Return the complete YAML of a preset: `sample`, overlaid by its bases and itself."""
    if name == _WHOLE:
        return read_sample(folder)
    file = folder / f"{name}.yaml"
    text = read_text(file)
    base = (parse_yaml(text, name=str(file)) or {}).get(_BASE, _WHOLE)
    return complete_preset(text, sample=read_preset(folder, base))


def read_sample(folder: Path) -> str:
    """Return params.yaml as published: the file beside the presets while it is unchanged, else from git."""
    file, current = folder / f"{_WHOLE}.yaml", folder.parent / layout.PARAMS
    blob = str((parse_yaml(read_text(file), name=str(file)) or {}).get("blob"))
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
    whole, values = _Document(sample), _Document(preset).tree or {}
    values.pop(_BASE, None)
    for table in ("sources", "p_train", "p_val", "p_sft"):
        if table in whole.tree and isinstance(values.get(table), dict):
            _keep_only(whole.tree[table], values[table])
    _overlay(whole.tree, values, _is_same_kind)
    return str(whole)


def apply_preset(current: str, preset: str) -> str:
    """Return the YAML of `current` with the values of a complete preset.

    A section with the same keys as the preset's keeps its comments. A section with other keys (another kind of
    tokenizer, other sources) is replaced by the preset's, comments included.
    """
    target, wanted = _Document(current), _Document(preset).tree
    if not isinstance(target.tree, dict):
        return preset
    _keep_only(target.tree, wanted)
    _overlay(target.tree, wanted, lambda old, new: set(old) == set(new))
    return str(target)


def keep_own_sources(preset: str, current: str) -> str:
    """Return a complete preset with the sources that `init` wrote into `current` in place of its private text."""
    document = _Document(preset)
    wanted, now = document.tree, _Document(current).tree
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
    return str(document)


@dataclass(frozen=True)
class Setting:
    """A value and the reason for it; a mapping is a section, whose values may be settings."""

    value: Any
    reason: str | None = None


def with_settings(text: str, settings: Mapping[str, Setting], *, shape: type[BaseModel] | None = None) -> str:
    """Return `text` with values set at dotted keys; a reason replaces the comment above its key; new keys come last.

    Keys with the default that they have in `shape`, and no reason, are removed with the comments above them, but for
    the first key of a section.
    """
    document = _Document(text)
    for dotted, setting in settings.items():
        *parents, key = dotted.split(".")
        section = reduce(getitem, parents, document.tree)
        is_default = shape and not setting.reason and setting.value == default_at(dotted, shape)
        if not is_default or key == next(iter(section), None):
            _put_setting(section, key, setting, indent=2 * len(parents))
        elif key in section:
            del section[key]
    return str(document)


def _put_setting(section: Any, key: str, setting: Setting, *, indent: int) -> None:
    value = setting.value
    if isinstance(value, Mapping):
        value = CommentedMap()
        for name, inner in setting.value.items():
            _put_setting(value, name, inner if isinstance(inner, Setting) else Setting(inner), indent=indent + 2)
        plain = not any(isinstance(inner, Setting | Mapping) for inner in setting.value.values())
        if plain and (indent >= 4 or (isinstance(section.get(key), dict) and section[key].fa.flow_style())):
            value.fa.set_flow_style()
    section[key] = value
    if setting.reason:
        section.fa.set_block_style()  # comments in braces are lost
        pad = " " * indent + "# "
        lines = textwrap.wrap(setting.reason, 116 - indent, break_long_words=False, break_on_hyphens=False)
        slots = section.ca.items.setdefault(key, [None] * 4)
        above = slots[1][0].value if slots[1] else ""
        above = re.sub(r"( *#.*\n)+\Z", "", above)  # up to an empty line
        slots[1] = [_above(above + "".join(f"{pad}{line}\n" for line in lines))]


def keep_copy(file: Path) -> Path | None:
    """Copy a file that is about to be overwritten to FILE.kept-N, unless there is none or it is as committed."""
    if not file.is_file() or (text := read_text(file)) == committed(Path(), file):
        return None
    copies = (file.with_name(f"{file.name}.kept-{number}") for number in count(1))
    copy = next(copy for copy in copies if not copy.exists() or read_text(copy) == text)
    write_text(copy, text)
    return copy


class _Document:
    """YAML in which a key carries the comments above and beside it, and the section below it, wherever it goes.

    ruamel attaches what follows a value, up to the next key, to the value. Here, this becomes what is above that key.
    """

    def __init__(self, text: str) -> None:
        self._yaml = YAML()
        written = self._yaml.representer  # writes None as null, where ruamel writes nothing, in this YAML alone
        written.yaml_representers = written.yaml_representers | {type(None): SafeRepresenter.represent_none}
        self._yaml.preserve_quotes = True
        self._yaml.width = 4096  # never wrap a line
        self._yaml.indent(mapping=2, sequence=4, offset=2)
        self.tree: Any = self._yaml.load(text)
        self._end = ""  # lines after the last value
        if isinstance(self.tree, CommentedMap):
            head = self.tree.ca.comment
            self._end = _move_comments(self.tree, _text(head and head[1]))

    def __str__(self) -> str:
        out = io.StringIO()
        self._yaml.dump(self.tree, out)
        return out.getvalue() + self._end


def _move_comments(section: Any, rest: str) -> str:
    """Attach the comments of a section to the keys below them, after `rest`; return those below the last key."""
    section.ca.comment = None
    for key, value in section.items():
        slots = section.ca.items.setdefault(key, [None] * 4)  # above the key: 1; beside its value: 2; below that: 3
        above, rest = rest + _text(slots[1]), ""
        slots[1] = [_above(above)] if above else None
        place, slot = slots, 2
        if isinstance(value, CommentedSeq) and value and not value.fa.flow_style():
            place, slot = value.ca.items.setdefault(len(value) - 1, [None] * 4), 0
        if token := place[slot]:
            beside, _, rest = token.value.partition("\n")
            token.value = f"{beside}\n"
            place[slot] = token if beside else None
        if isinstance(value, CommentedMap) and not value.fa.flow_style():
            rest, slots[3] = _move_comments(value, rest + _text(slots[3])), None
    return rest + _text(section.ca.end)


def _text(comments: Any) -> str:
    return "".join(" " * comment.start_mark.column + comment.value for comment in comments or [])


def _above(lines: str) -> Any:
    return CommentToken(lines, CommentMark(0), None)


def explained(values: Mapping[str, Any], annotation: Any) -> dict[str, Setting]:
    """Return a setting for each value, with the help text of its key as the reason."""
    found = {}
    for key, field in fields_of(values, annotation).items():
        notes = [note for note in field.metadata if isinstance(note, str)]
        inner = explained(values[key], field.annotation) if isinstance(values[key], dict) else {}
        found[key] = Setting(inner or values[key], ": ".join(notes) or None)
    return found


def _keep_only(section: Any, names: Collection[str]) -> None:
    for name in set(section) - set(names):
        del section[name]


def _overlay(target: Any, values: Any, fits: Callable[[Any, Any], bool]) -> None:
    """Set values; a section that `fits` the one there is overlaid in turn, any other replaced, comments included."""
    for key, value in values.items():
        old = target.get(key)
        if isinstance(value, dict) and isinstance(old, dict) and fits(old, value):
            _overlay(old, value, fits)
        elif key not in target or old != value or type(old) is not type(value):
            target[key] = value


def _is_same_kind(old: Any, new: Any) -> bool:
    return all(new.get(tag, old.get(tag)) == old.get(tag) for tag in ("kind", "by"))


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
