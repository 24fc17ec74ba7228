"""What every stage shares: declared inputs, fixed while it runs; outputs, published whole; skipped stages.

DVC hashes a stage's dependencies and parameters *after* its command has ended. Edit params.yaml while a model trains,
and the old model is recorded under the new parameters. So a stage takes a fingerprint of what dvc.yaml declares for it,
works from the parameters it read then, and compares at the end; when the two differ it fails and publishes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, NoReturn

from niels_gpt.files.atomic import discard, publish, temporary_beside
from niels_gpt.files.checks import Damaged, sha256_file
from niels_gpt.files.messages import EXPECTED, name_file, read_text, sentence
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.code import holding_to
from niels_gpt.pipeline.params import Params, parse_params
from niels_gpt.pipeline.repository import keep_lock
from niels_gpt.pipeline.sources import ChatSource, Section, Source
from niels_gpt.pipeline.yaml_files import parse_yaml

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


# Stages that params.yaml leaves out (`sft.run: false`). DVC has no stage that a parameter takes away, and wants all
# that a stage writes to be there: theirs holds nothing, and whoever reads a model asks here whether it is one.

# By the suffix of an output, what DVC shows as nothing and does not warn of: of an empty file it would.
_NOTHING = {
    ".html": '<!doctype html><html lang="en"><meta charset="utf-8"><title>Left out</title><p>Left out.</p></html>\n',
    ".json": "{}\n",
    ".md": "Left out.\n",
    ".svg": '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>\n',
    ".tsv": "left out\n",
}


def leave_out(stage: Stage, *outs: Path) -> None:
    """Write the outputs of a stage that is not to run: a folder with a mark in it, files with nothing."""
    for out in outs:
        nothing = _NOTHING[out.suffix or ".json"]
        if out.suffix:
            stage.out(out).write_text(nothing, encoding="utf-8")
        else:
            stage.out(out).mkdir()
            (stage.out(out) / layout.LEFT_OUT).write_text(nothing, encoding="utf-8")
    stage.say("left out, as params.yaml says")


def is_left_out(folder: Path) -> bool:
    """Whether the stage that writes this folder was left out when it came to it."""
    return (folder / layout.LEFT_OUT).is_file()


def final_models() -> dict[str, Path]:
    """By name, the folders of the models that a run ends with: the pretrained one, and the tuned one if it has any."""
    return {folder.name: folder for folder in (layout.PRETRAINED, layout.TUNED) if not is_left_out(folder)}


_SMALL_BYTES = 4 << 20  # larger files are told apart by size and time: hashing gigabytes twice a stage would hurt


@dataclass(frozen=True)
class Inputs:
    """What dvc.yaml declares for a stage, as it was at one moment."""

    params: dict[str, Any]
    deps: dict[str, str]

    def fingerprint(self) -> str:
        """Names a run: equal inputs, equal fingerprint."""
        return hashlib.sha256(json.dumps([self.params, self.deps], sort_keys=True).encode()).hexdigest()[:32]

    def differences(self, other: Inputs) -> list[str]:
        pairs = [(self.params, other.params), (self.deps, other.deps)]
        return sorted(key for a, b in pairs for key in {*a, *b} if a.get(key) != b.get(key))


@dataclass
class Stage:
    """One run of one stage of dvc.yaml. `key` is the source of a foreach stage."""

    name: str
    key: str
    params: Params
    inputs: Inputs
    on_success: list[Callable[[], object]] = field(default_factory=list)  # once all outputs stand in their places
    _outs: dict[Path, Path] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        return self.params.sources[self.key]

    @property
    def chat_source(self) -> ChatSource | None:
        """The source, where it is one of chats: `load`, `split` and `tokenize` serve both kinds."""
        return self.params.chats.get(self.key)

    def out(self, path: str | Path) -> Path:
        """A temporary path to write this out to; it takes its place only when the whole stage has succeeded."""
        final = Path(path)
        if final in self._outs:
            return self._outs[final]
        final.parent.mkdir(parents=True, exist_ok=True)
        for stale in final.parent.glob(f".{final.name}.tmp*"):  # of a run that was killed
            discard(stale)
        return self._outs.setdefault(final, temporary_beside(final))

    def say(self, text: str) -> None:
        print(f"{self.title}: {text}", flush=True)

    @property
    def title(self) -> str:
        return f"{self.name}@{self.key}" if self.key else self.name


def run_stage(module: str, main: Callable[[Stage], None]) -> NoReturn:
    """Run `main` as the stage that DVC says this is, and leave: the body of every `python -m stages.<module>`."""
    name, key = identify(os.environ.get("DVC_STAGE", module))
    # A plain kill is a Ctrl-C: what was begun is taken away. Training saves on either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    title = " ".join(f"{name}@{key}".removesuffix("@").split())
    code = 0
    try:
        if name.removesuffix("_chat") != module:
            raise ValueError(f"DVC_STAGE says so, but this is stages.{module}: run it with `dvc repro`")
        execute(name, key, main)
    except EXPECTED as error:
        print(f"ERROR: {title}: {sentence_with_remedy(error)}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print(f"{title}: interrupted; nothing was written", file=sys.stderr)
        code = 130
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: an interpreter that shuts down while an abandoned download still reads hangs (apache/arrow 45214).
    os._exit(code)


def identify(address: str) -> tuple[str, str]:
    """Name and key out of DVC's address of a stage, `load@roam`, with a path before it where DVC was called elsewhere.

    It comes in the environment: a command with a name out of params.yaml in it would hand that name to a shell.
    """
    name, _, key = address.rpartition(":")[2].partition("@")
    return name, key


def execute(name: str, key: str, main: Callable[[Stage], None]) -> None:
    """Run `main` as that stage of dvc.yaml: its declared inputs held fixed, its outputs published at the end."""
    keep_lock(Path())
    params, inputs = read_inputs(name, key)
    stage = Stage(name=name, key=key, params=params, inputs=inputs)
    records = [Path(dep) for dep in inputs.deps if Path(dep).is_relative_to(layout.CODE)]
    try:
        with ExitStack() as held:
            for record in records:
                held.enter_context(holding_to(record))
            main(stage)
        changed = inputs.differences(read_inputs(name, key)[1])
        if changed:
            raise ValueError(
                f"{', '.join(changed)} changed while the stage ran, so its result would be recorded under inputs it "
                "was not made from: put it back, or run again"
            )
        for final, temporary in stage._outs.items():
            publish(temporary, final)
        for act in stage.on_success:
            act()
    except OSError as error:
        name_file(error, " or ".join(map(str, stage._outs)))
        raise
    finally:
        for temporary in stage._outs.values():
            discard(temporary)


def read_inputs(name: str, key: str) -> tuple[Params, Inputs]:
    """The parameters, read once, and the stage's declared inputs as they are now."""
    params, raw = _parsed_params(read_text(layout.PARAMS))
    declared, deps = declaration(name, key, raw)
    return only_declared(params, declared), Inputs(
        params={name: lookup(raw, name) for name in declared}, deps={dep: digest(Path(dep)) for dep in deps}
    )


_parsed_params = lru_cache(maxsize=2)(parse_params)  # read again when a stage ends, and most often the same


def only_declared(section: Section, declared: Sequence[str]) -> Any:
    """The parameters without those that dvc.yaml does not declare for the stage: what it cannot see, it cannot depend
    on behind DVC's back. `runtime` stays, which changes no result; so do the names of sources and where they lie."""
    seen: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        below = [path.removeprefix(f"{name}.") for path in declared if path.startswith(f"{name}.")]
        if name in declared or name in ("runtime", "input", "remote"):
            seen[name] = value
        elif isinstance(value, dict) and name in ("sources", "chats"):
            seen[name] = {
                key: only_declared(item, [path.removeprefix(f"{key}.") for path in below if path.startswith(f"{key}.")])
                for key, item in value.items()
            }
        elif below:
            seen[name] = only_declared(value, below)
    return type(section).model_construct(**seen)


def project_root() -> Path:
    """The checkout itself, also when DVC runs an experiment in a throw-away copy of it."""
    return Path(os.environ.get("DVC_ROOT", "."))


def digest(path: Path, *, whole: bool = False) -> str:
    """Of a file or folder as it is now; `whole`: of large files, too, all bytes are read."""
    if path.is_file():  # not a FIFO, nor a device: those would be read for ever
        status = path.stat()
        if status.st_size > _SMALL_BYTES and not whole:
            return f"{status.st_size} bytes, mtime {status.st_mtime_ns}"
        try:
            return sha256_file(path)
        except OSError as error:  # whoever needs the file will say so, and by name
            return f"unreadable: {error.strerror}"
    if not path.is_dir():
        return "no file" if path.is_symlink() or path.exists() else "absent"
    tree = hashlib.sha256()
    # As DVC sees it: a linked folder is a name, and is not gone into (it may lead back here).
    for folder, subfolders, files in os.walk(path):
        linked = [name for name in subfolders if Path(folder, name).is_symlink()]
        subfolders[:] = sorted(set(subfolders) - layout.UNWATCHED)
        for name in sorted({*files, *linked} - layout.UNWATCHED):
            file = Path(folder, name)
            said = f"link to {os.readlink(file)}" if name in linked else digest(file, whole=whole)
            tree.update(f"{file.relative_to(path).as_posix()}\0{said}\n".encode(errors="surrogateescape"))
    return tree.hexdigest()
