"""What every stage shares: its declared inputs, held fixed while it runs, and its outputs, published whole at the end.

DVC hashes a stage's dependencies and parameters *after* its command has ended. Edit params.yaml while a model trains,
and the old model is recorded under the new parameters. So a stage takes a fingerprint of what dvc.yaml declares for
it, works from the parameters it read then, and compares at the end; when the two differ it fails and publishes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from niels_gpt.files.atomic import discard, publish, temporary_beside
from niels_gpt.files.checksums import sha256_file
from niels_gpt.files.sentences import EXPECTED, name_file, read_text
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.code import holding_to
from niels_gpt.pipeline.dvc_files import keep_lock
from niels_gpt.pipeline.graph import declaration, lookup, sentence_with_remedy
from niels_gpt.pipeline.params import Params, parse_params
from niels_gpt.pipeline.sections import Section
from niels_gpt.pipeline.sources import ChatSource, Source

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
