"""What every stage shares: its declared inputs, held fixed while it runs, and its outputs, published whole at the end.

DVC hashes a stage's dependencies and parameters *after* its command has ended. Edit params.yaml while a model trains,
and the old model is recorded under the new parameters. So a stage takes a fingerprint of what dvc.yaml declares for
it, works from the parameters it read then, and compares at the end; when the two differ it fails and publishes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, NoReturn

from niels_gpt.atomic import discard, publish, temporary_beside
from stages.params import PARAMS_FILE, ChatSource, Params, Source, parse_params
from stages.yaml12 import parse_yaml

_TEMPLATE = re.compile(r"\$\{([A-Za-z0-9_.]+)\}")
_SMALL_BYTES = 4 << 20  # larger files are told apart by size and time: hashing gigabytes twice a stage would hurt
_NOISE = {"__pycache__", ".DS_Store"}


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
    """One run of one stage. `key` is the source of a foreach stage."""

    name: str
    key: str
    params: Params
    inputs: Inputs
    _outs: dict[Path, Path] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        return self.params.sources[self.key]

    @property
    def chat_source(self) -> ChatSource | None:
        """The source, where it is one of chats: `load`, `split` and `tokenize` serve both kinds."""
        return self.params.chats.get(self.key)

    def out(self, path: str) -> Path:
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


def run_stage(name: str, main: Callable[[Stage], None]) -> NoReturn:
    """Run `main` as the stage `name` of dvc.yaml, and leave: the body of every `python -m stages.<name>`."""
    key = sys.argv[1] if len(sys.argv) > 1 else ""
    title = f"{name}@{key}" if key else name
    code = 0
    try:
        _run(name, key, main)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"ERROR: {title}: {_sentence(error)}", file=sys.stderr)
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


def _run(name: str, key: str, main: Callable[[Stage], None]) -> None:
    params, inputs = read_inputs(name, key)
    stage = Stage(name=name, key=key, params=params, inputs=inputs)
    try:
        main(stage)
        changed = inputs.differences(read_inputs(name, key)[1])
        if changed:
            raise ValueError(
                f"{', '.join(changed)} changed while the stage ran, so its result would be recorded under inputs it "
                "was not made from: put it back, or run again"
            )
        for final, temporary in stage._outs.items():
            publish(temporary, final)
    finally:
        for temporary in stage._outs.values():
            discard(temporary)


def read_inputs(name: str, key: str) -> tuple[Params, Inputs]:
    """The parameters, read once, and the stage's declared inputs as they are now."""
    params, raw = parse_params(PARAMS_FILE.read_text(encoding="utf-8"))
    stages = parse_yaml(Path("dvc.yaml").read_text(encoding="utf-8"), name="dvc.yaml")["stages"]
    declared, item = stages[name], {}
    if "do" in declared:
        if key not in {**params.sources, **params.chats}:
            names = sorted({*params.sources, *params.chats})
            raise ValueError(f"there is no source {key!r} in {PARAMS_FILE}; there are: {names}")
        table = "chats" if key in params.chats else "sources"
        declared, item = stages[f"{name}_chat" if key in params.chats else name]["do"], raw[table][key]

    # What DVC's templates may name: the parameters, and in a foreach stage its key and item.
    known = {**raw, "key": key, "item": item}

    def resolve(text: str) -> str:
        return _TEMPLATE.sub(lambda match: str(_lookup(known, match[1])), text)

    declared_params = [resolve(text) for text in declared.get("params", [])]
    deps = [resolve(text) for text in declared.get("deps", [])]
    return params, Inputs(
        params={name: _lookup(raw, name) for name in declared_params},
        deps={dep: _digest(Path(dep)) for dep in deps},
    )


def project_root() -> Path:
    """The checkout itself, also when DVC runs an experiment in a throw-away copy of it."""
    return Path(os.environ.get("DVC_ROOT", "."))


def _lookup(tree: Any, dotted: str) -> Any:
    return reduce(lambda node, part: node[part], dotted.split("."), tree)


def _digest(path: Path) -> str:
    if path.is_file():
        status = path.stat()
        if status.st_size > _SMALL_BYTES:
            return f"{status.st_size} bytes, mtime {status.st_mtime_ns}"
        try:
            return hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:  # whoever needs the file will say so, and by name
            return f"unreadable: {error.strerror}"
    if not path.is_dir():
        return "absent"
    tree = hashlib.sha256()
    for folder, subfolders, files in os.walk(path, followlinks=True):
        subfolders[:] = sorted(name for name in subfolders if name not in _NOISE)
        for name in sorted(set(files) - _NOISE):
            file = Path(folder, name)
            tree.update(f"{file.relative_to(path).as_posix()}\0{_digest(file)}\n".encode(errors="surrogateescape"))
    return tree.hexdigest()


def _sentence(error: Exception) -> str:
    """An error as one line, the path included where the system knows it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file'}: {error.strerror}"
    return " ".join(str(error).split())
