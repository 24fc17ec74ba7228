"""`python -m niels_gpt.pipeline.repro ARGUMENTS`: `dvc repro` with less time between stages.

For each stage DVC starts a process, which imports libraries for a second or two. This module imports them once and
forks. DVC also parses and writes the whole dvc.lock with a YAML library that preserves comments (there are none): 1.3 s
for the sample's. This module parses it in C and rewrites the stage's entry alone, to the same bytes. The new file
replaces the old one atomically, while a kill of DVC can leave an empty file. Tests load this module into another
process's DVC, so it imports nothing of the project.
"""

import importlib
import os
import re
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

LIBRARIES = ("numpy", "pyarrow.parquet", "pydantic", "ruamel.yaml", "torch", "tqdm", "yaml")  # what stages import
_HEAD = "schema: '2.0'\nstages:\n"


@contextmanager
def modify_lock(path: str, fs: object = None) -> Iterator[dict[str, Any]]:
    """Yield the content of dvc.lock for DVC to replace stages' entries, then write it; replaces DVC's `modify_yaml`."""
    from dvc.utils.serialize import dumps_yaml, parse_yaml

    lock = Path(path)
    text = lock.read_text(encoding="utf-8") if lock.exists() else ""
    content = parse_yaml(text, path)
    before = dict(content.get("stages", {}))
    yield content
    head, *entries = re.split(r"^(?=  \S)", text, flags=re.MULTILINE)
    if head == _HEAD and len(entries) == len(before) and content.keys() == {"schema", "stages"}:
        text = _HEAD
        written = dict(zip(before, entries, strict=True))
        for name, entry in content["stages"].items():
            same = entry is before.get(name)
            text += written[name] if same else dumps_yaml({"stages": {name: entry}}).removeprefix("stages:\n")
    else:
        text = dumps_yaml(content)
    temporary = lock.parent / ".dvc/tmp" / f"{lock.name}.{os.getpid()}"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(lock)


def run_stage(executable: str | None, cmd: str, *, cwd: str, env: Mapping[str, str], **how: object) -> None:
    """Run `python -m MODULE` in a fork of this process, which has imported its libraries; replaces DVC's `_run`."""
    for name in LIBRARIES:
        importlib.import_module(name)
    run_forked(cmd, lambda: _become(cmd.split()[2], cwd, env))


def run_forked(cmd: str, become: Callable[[], NoReturn]) -> None:
    """Call `become` in a fork, wait for it, and raise DVC's error if it ends with another code than 0."""
    from dvc.stage.exceptions import StageCmdFailedError

    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        become()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in DVC: Ctrl-C is for the stage
    try:
        _, status = os.waitpid(child, 0)
    finally:
        signal.signal(signal.SIGINT, handler)
    if status:
        raise StageCmdFailedError(cmd, os.waitstatus_to_exitcode(status))


def _become(module: str, cwd: str, env: Mapping[str, str]) -> NoReturn:
    """Run a module as `python -m` does, in this process, and exit with its code."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        sys.path[0], sys.argv = cwd, [module]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> int:
    import dvc.dvcfile
    import dvc.stage.run
    from dvc.cli import main as dvc_main

    dvc.dvcfile.modify_yaml = modify_lock
    if sys.platform == "linux":  # elsewhere a library may not survive a fork
        shell = dvc.stage.run._run
        own = re.compile(r"python -m stages\.\w+")
        dvc.stage.run._run = lambda _, cmd, **how: (run_stage if own.fullmatch(cmd) else shell)(_, cmd, **how)
    return int(dvc_main(["repro", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
