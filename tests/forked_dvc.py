"""DVC as tests call it, where many stages are run: `python -P tests/forked_dvc.py repro`.

Each stage is a process, forked from DVC's own, with the libraries that it is about to import in memory already. The
project's code is imported by the stage itself, from where it runs. And dvc.lock, which DVC reads and writes after each
stage, is parsed in C. That is most of what a tiny stage takes. The `dvc` that a user runs is run by tests that stop it
half-way, and by CI's own `make run`.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import runpy
import signal
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import dvc.dvcfile
import dvc.stage.run
from dvc.cli import main
from dvc.stage.exceptions import StageCmdFailedError
from ruamel.yaml import YAML

_STAGE = re.compile(r"python -m (stages\.\w+)")
_LIBRARIES = ("numpy", "pyarrow.parquet", "pydantic", "tqdm")
_WITH_TORCH = {"stages.train", "stages.sft", "stages.splice", "stages.leak", "stages.eval", "stages.memorize"}


def run_forked(executable: str, cmd: str, *, cwd: str, env: dict[str, str], **_: Any) -> None:
    found = _STAGE.fullmatch(cmd)
    assert found, f"{cmd} is no stage of this project"
    for name in (*_LIBRARIES, *(["torch"] if found[1] in _WITH_TORCH else [])):
        importlib.import_module(name)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _become(found[1], cwd=cwd, env=env)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as DVC: a Ctrl-C is for the stage
    try:
        _, status = os.waitpid(child, 0)
    finally:
        signal.signal(signal.SIGINT, handler)
    if status:
        raise StageCmdFailedError(cmd, os.waitstatus_to_exitcode(status))


def _become(module: str, *, cwd: str, env: dict[str, str]) -> NoReturn:
    """The process that `python -m module` is, in that folder and environment."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path.insert(0, cwd)
    sys.argv = [module]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        os._exit(1)  # a stage leaves by itself


@contextmanager
def modify_in_c(path: str, fs: object = None) -> Iterator[dict[str, Any]]:
    """dvc.lock, which has no comments to be kept: DVC goes by them through ten times as slow a parser."""
    assert Path(path).name == "dvc.lock"
    yaml = YAML(typ="safe")
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = False, False
    yaml.Representer.add_representer(OrderedDict, yaml.Representer.represent_dict)
    text = Path(path).read_text() if Path(path).exists() else ""
    data: dict[str, Any] = yaml.load(text) or {}
    yield data
    with Path(path).open("w") as lock:
        yaml.dump(data, lock)


if __name__ == "__main__":
    gc.disable()  # of a tenth of the time
    dvc.stage.run._run = run_forked
    dvc.dvcfile.modify_yaml = modify_in_c
    code = main(sys.argv[1:])
    gc.collect()  # while there is an interpreter: destructors left for later complain
    sys.exit(code)
