"""Code shared by all stages: declared inputs, fixed during a run; outputs, published atomically; disabled stages.

DVC hashes a stage's dependencies and parameters *after* its command has ended. If params.yaml is edited while a model
trains, DVC would record the old model under the new parameters. So a stage fingerprints the inputs that dvc.yaml
declares for it, works with the parameters it read then, and compares again at the end; if they differ, it fails and
publishes nothing.
"""

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

from niels_gpt.config import Section
from niels_gpt.files.atomic import atomic_path, discard
from niels_gpt.files.checks import Damaged, sha256_file
from niels_gpt.files.messages import EXPECTED, read_text, sentence
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.code import holding_to
from niels_gpt.pipeline.params import Params, parse_params
from niels_gpt.pipeline.repository import DvcCache
from niels_gpt.pipeline.sections import Source
from niels_gpt.pipeline.yaml_files import parse_yaml

_IN_A_STORE = re.compile(r"(?:texts|tokens)/[a-z0-9_]+/[0-9a-f]{32}/")  # as `place_of` in stores.py names them
_TEMPLATE = re.compile(r"\$\{([A-Za-z0-9_.]+)\}")


def stage_titles(raw: Mapping[str, Any]) -> list[str]:
    """Return the names of all stages in dvc.yaml, `load@roam` for one of a foreach; `raw` is the params mapping."""
    titles = []
    for name, declared in _stages().items():
        titles += [f"{name}@{key}" for key in raw["sources"]] if "do" in declared else [name]
    return titles


def remove_leftovers(raw: Mapping[str, Any]) -> list[str]:
    """Delete outputs of sources that `raw` does not name, if DVC's cache has them; return those sources' names.

    DVC leaves them until its next checkout. Stages that depend on a whole folder would run once with them and once
    more without.
    """
    cache, removed = DvcCache(), set()
    for out in (out for out in _outs() if "${key}" in out):
        for path in sorted(Path().glob(_TEMPLATE.sub("*", out))):
            name = path.name.removesuffix(".json")
            if name not in raw["sources"] and re.fullmatch(r"[a-z0-9_]+", name) and cache.has(path):
                discard(path)
                removed.add(name)
    return sorted(removed)


def sentence_with_remedy(error: BaseException) -> str:
    """Return an error as one line; for damaged outputs of the DAG, with how to restore them."""
    said = sentence(error)
    if isinstance(error, Damaged) and layout.DAG.is_file():
        patterns = ["[^/]+".join(map(re.escape, _TEMPLATE.split(out)[::2])) for out in _outs()]
        found = (re.match(f"{pattern}(?=/|$)", path) for pattern in patterns for path in error.paths)
        outs = sorted({out[0] for out in found if out})
        said += f"; delete {', '.join(outs)} and run `dvc repro`" if outs else ""
        if any(_IN_A_STORE.search(path) for path in error.paths):
            said += "; `niels-gpt store` finds all damaged files in stores, and prints how to make them again"
    return said


# Both files are read again when a stage ends, mostly unchanged.
_parsed_dag, _parsed_params = lru_cache(maxsize=2)(parse_yaml), lru_cache(maxsize=2)(parse_params)


def _stages() -> dict[str, Any]:
    return _parsed_dag(read_text(layout.DAG), name=str(layout.DAG))["stages"]


def _outs() -> Iterator[str]:
    """Yield the outputs of all stages as written, with templates."""
    for stage in _stages().values():
        declared = stage.get("do", stage)
        for out in (out for kind in ("outs", "metrics", "plots") for out in declared.get(kind, [])):
            yield out if isinstance(out, str) else next(iter(out))


# Stages disabled in params.yaml (`sft.run: false`). DVC cannot disable a stage by a parameter and requires all outputs
# to exist, so a disabled stage writes empty ones, and readers of a model check `is_left_out`.

# Content of an empty output by suffix. DVC would warn about a file of zero bytes.
_NOTHING = {
    ".html": '<!doctype html><html lang="en"><meta charset="utf-8"><title>Skipped</title><p>Skipped.</p></html>\n',
    ".json": "{}\n",
    ".md": "Skipped.\n",
    ".svg": '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>\n',
    ".tsv": "skipped\n",
}


def leave_out(stage: "Stage", *outs: Path) -> None:
    """Write the outputs of a disabled stage: folders with only a marker, files without content."""
    for out in outs:
        file = stage.out(out) if out.suffix else stage.out(out) / layout.LEFT_OUT
        file.parent.mkdir(exist_ok=True)
        file.write_text(_NOTHING[out.suffix or ".json"], encoding="utf-8")
    stage.say("skipped, as params.yaml says")


_SMALL_BYTES = 4 << 20  # larger files are compared by size and mtime: hashing gigabytes twice per stage is slow


@dataclass(frozen=True)
class Inputs:
    """Snapshot of the inputs that dvc.yaml declares for a stage: parameter values and hashes of dependencies."""

    params: dict[str, Any]
    deps: dict[str, str]

    def fingerprint(self) -> str:
        """Return a hash that identifies a run: equal inputs have equal fingerprints."""
        return hashlib.sha256(json.dumps([self.params, self.deps], sort_keys=True).encode()).hexdigest()[:32]

    def differences(self, other: "Inputs") -> list[str]:
        """Return the names of parameters and dependencies that differ."""
        pairs = [(self.params, other.params), (self.deps, other.deps)]
        return sorted(key for a, b in pairs for key in {*a, *b} if a.get(key) != b.get(key))


@dataclass
class Stage:
    """One run of a stage of dvc.yaml; `key` is the source of a foreach stage."""

    name: str
    key: str
    params: Params
    inputs: Inputs
    on_success: list[Callable[[], object]] = field(default_factory=list)  # called once all outputs are published
    publishing: ExitStack = field(default_factory=ExitStack)  # its end moves all outputs into place
    outs: dict[Path, Path] = field(default_factory=dict)  # {path: temporary path} of each output

    @property
    def source(self) -> Source:
        return self.params.sources[self.key]

    def out(self, path: str | Path) -> Path:
        """Return a temporary path for an output, which is moved into place when the whole stage has succeeded."""
        final = Path(path)
        if final not in self.outs:
            for stale in final.parent.glob(f".{final.name}.tmp*"):  # left by a killed run
                discard(stale)
            self.outs[final] = self.publishing.enter_context(atomic_path(final))
        return self.outs[final]

    def say(self, text: str) -> None:
        """Print a line with the stage's title."""
        print(f"{self.title}: {text}", flush=True)

    @property
    def title(self) -> str:
        return f"{self.name}@{self.key}" if self.key else self.name


def run_stage(module: str, main: Callable[[Stage], None]) -> NoReturn:
    """Run `main` as the stage in DVC_STAGE, then exit: the body of every `python -m stages.<module>`."""
    # DVC's address of the stage, such as dvc.yaml:load@roam, comes in the environment: in a command, a name from
    # params.yaml would be passed to a shell.
    key = os.environ.get("DVC_STAGE", module).rpartition(":")[2].partition("@")[2]
    # Treat SIGTERM as Ctrl-C: partial outputs are removed. Training saves a checkpoint on either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    title, code = " ".join(f"{module}@{key}".removesuffix("@").split()), 0
    try:
        execute(module, key, main)
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
    # Not sys.exit: interpreter shutdown hangs while an abandoned download is still reading (apache/arrow 45214).
    os._exit(code)


def execute(name: str, key: str, main: Callable[[Stage], None]) -> None:
    """Run `main` as this stage of dvc.yaml, check that its inputs did not change, and publish its outputs."""
    params, inputs = read_inputs(name, key)
    stage = Stage(name=name, key=key, params=params, inputs=inputs)
    with stage.publishing:
        with ExitStack() as held:
            for dep in inputs.deps:
                if dep.startswith(f"{layout.CODE}/"):
                    held.enter_context(holding_to(Path(dep)))
            main(stage)
        changed = inputs.differences(read_inputs(name, key)[1])
        if changed:
            raise ValueError(
                f"{', '.join(changed)} changed while the stage ran, so its result would be recorded under inputs it "
                "was not made from: put it back, or run again"
            )
    for act in stage.on_success:
        act()


def read_inputs(name: str, key: str) -> tuple[Params, Inputs]:
    """Return the parameters that dvc.yaml declares for a stage, and a snapshot of its inputs.

    `key` is the source of a foreach stage.
    """
    params, raw = _parsed_params(read_text(layout.PARAMS))
    declared, item = _stages()[name], {}
    if "do" in declared:
        items = raw["sources"]
        if key not in items:
            raise ValueError(f"there is no source {key!r} in {layout.PARAMS}; there are: {sorted(items)}")
        declared, item = declared["do"], items[key]
    # Names that DVC's templates may use: the parameters, and in a foreach stage its key and item.
    known = {**raw, "key": key, "item": item}

    def value_of(dotted: str) -> Any:
        return reduce(lambda node, part: node[part], dotted.split("."), known)

    def filled(field: str) -> list[str]:
        return [_TEMPLATE.sub(lambda match: str(value_of(match[1])), text) for text in declared.get(field, [])]

    names, deps = filled("params"), filled("deps")
    inputs = Inputs({name: value_of(name) for name in names}, {dep: digest(Path(dep)) for dep in deps})
    seen: Params = only_declared(params, names)
    return seen, inputs


# Always seen: `runtime`, which changes no result, and these keys of a source.
_SEEN = re.compile(r"runtime(\.|$)|sources\.\w+\.(use|input|remote)$")


def only_declared(section: Any, declared: Sequence[str], path: str = "") -> Any:
    """Return the parameters without those that dvc.yaml does not declare for the stage.

    So no stage can depend on a parameter without DVC's knowledge: any other, even one with a default, is an
    AttributeError. A seed may be the one at the top, and is only kept for a stage that declares that.
    """
    seen: dict[str, Any] = {}
    for name, value in section.items() if isinstance(section, dict) else section:
        at = f"{path}.{name}".removeprefix(".")
        if name == "seed" and "seed" not in declared and not path.endswith(".load"):
            continue
        below = only_declared(value, declared, at) if isinstance(value, Section | dict) else value
        known = _SEEN.match(at) or any(f"{at}.".startswith(f"{key}.") for key in declared)
        if known or (below is not value and dict(below)):
            seen[name] = below
    if isinstance(section, dict):
        return seen
    bare = type(section).model_construct()
    bare.__dict__.clear()
    bare.__dict__.update(seen)
    return bare


def project_root() -> Path:
    """Return the checkout itself, even if DVC runs an experiment in a temporary copy of it."""
    return Path(os.environ.get("DVC_ROOT", "."))


def digest(path: Path, *, whole: bool = False) -> str:
    """Return a hash of a file or folder; large files count by size and mtime unless `whole`."""
    if path.is_file():
        status = path.stat()
        if status.st_size > _SMALL_BYTES and not whole:
            return f"{status.st_size} bytes, mtime {status.st_mtime_ns}"
        return sha256_file(path)
    if not path.is_dir():
        return "absent"
    tree = hashlib.sha256()
    for folder, subfolders, files in os.walk(path):  # like DVC, it does not follow linked folders
        subfolders[:] = sorted(set(subfolders) - layout.UNWATCHED)
        for file in (Path(folder, name) for name in sorted(set(files) - layout.UNWATCHED)):
            said = f"{file.relative_to(path).as_posix()}\0{digest(file, whole=whole)}\n"
            tree.update(said.encode(errors="surrogateescape"))
    return tree.hexdigest()
