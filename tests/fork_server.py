"""Server that runs commands in forks of a process that has the libraries imported already.

Tests run many commands, and imports take most of the time of a tiny stage.

`python -P tests/fork_server.py SOCKET` serves until its stdin ends; `python tests/fork_server.py SOCKET dvc repro` has
it run a command: `dvc`, `niels-gpt` or `python`. It imports the modules that the environment variable PRELOADED names,
by default LIBRARIES and DVC, and this checkout's `niels_gpt`: a command in a folder whose code is the same to the byte
uses it, any other imports its own. A stage is forked from DVC's process. dvc.lock is written as by `niels-gpt run`.
Tests that stop a command half-way and CI's own `make run` start plain processes instead.
"""

import hashlib
import importlib
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("numpy", "pyarrow.parquet", "pydantic", "ruamel.yaml", "torch", "tqdm", "typer", "yaml")
DVC = (
    *("dvc.cli.parser", "dvc.commands.repro", "dvc.commands.experiments.run", "dvc.lock", "dvc.repo.index", "dvc.scm"),
    *("dvc.repo.experiments.queue.celery", "dvc.repo.stage", "dvc.utils.strictyaml", "networkx", "pygit2", "pyparsing"),
)


@contextmanager
def asked(address: str, command: Sequence[str], cwd: str, env: Mapping[str, str], fds: Sequence[int]) -> Iterator[Any]:
    """Start a command with three file descriptors; yield (its pid, a function that waits for its exit code)."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        request = json.dumps([list(command), cwd, dict(env)]).encode()
        socket.send_fds(server, [len(request).to_bytes(8, "big")], list(fds))
        server.sendall(request)
        numbers = server.makefile()

        def wait(timeout: float | None = None) -> int:
            server.settimeout(timeout)
            return int(numbers.readline())

        yield int(numbers.readline()), wait


def serve(address: str) -> None:
    import gc
    import selectors

    for name in os.environ.get("PRELOADED", " ".join(LIBRARIES + DVC)).split():
        importlib.import_module(name)
    _project[_hash_of_code(ROOT)] = _import_project()
    gc.disable()  # it takes a tenth of the time
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks that run `_attend`
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as ready:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        ready.register(listener, selectors.EVENT_READ)
        ready.register(0, selectors.EVENT_READ)
        while all(key.fileobj is listener for key, _ in ready.select()):
            client, _ = listener.accept()
            with client:
                if os.fork() == 0:
                    listener.close()
                    _attend(client)
    shutil.rmtree(Path(address).parent)


_project: dict[str, dict[str, ModuleType]] = {}  # modules of this checkout's niels_gpt, by the hash of its code


def _import_project() -> dict[str, ModuleType]:
    """Import what commands and stages import of this checkout's niels_gpt, and take it out of sys.modules."""
    sys.path.insert(0, str(ROOT))
    stages = sorted(path.stem for path in (ROOT / "stages").glob("*.py"))
    for name in ("niels_gpt.cli.app", *(f"stages.{stage}" for stage in stages)):
        importlib.import_module(name)
    sys.path.remove(str(ROOT))
    own = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ("niels_gpt", "stages")}
    for name in own:
        del sys.modules[name]
    # runpy executes a stage that nobody has imported.
    return {name: module for name, module in own.items() if name.split(".")[0] == "niels_gpt"}


def _hash_of_code(folder: Path) -> str:
    """Return a hash of the names and bytes of all files of niels_gpt in a folder."""
    found = hashlib.sha256()
    for path in sorted((folder / "niels_gpt").rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            found.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def _attend(client: socket.socket) -> NoReturn:
    """Run one command and send its pid and its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, fds, _, _ = socket.recv_fds(client, 8, 3)
    with client.makefile("rb") as file:
        command, cwd, env = json.loads(file.read(int.from_bytes(size, "big")))
    child = os.fork()
    if child == 0:
        client.close()
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        for fd in fds:
            os.close(fd)
        become(command, cwd=cwd, env=env)
    for fd in fds:
        os.close(fd)
    client.sendall(f"{child}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    client.sendall(f"{code}\n".encode())
    os._exit(0)


def become(command: Sequence[str], *, cwd: str, env: Mapping[str, str]) -> NoReturn:
    """Run a command in this process, in the given folder and environment, and exit with its code."""
    import atexit
    import runpy
    import traceback

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    name, *arguments = command
    first = {"python": [cwd], "niels-gpt": [str(ROOT)]}.get(name, [])
    sys.path[:0] = [*first, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    if first:
        sys.modules.update(_project.get(_hash_of_code(Path(first[0])), {}))
    code = 1
    try:
        if name == "python" and arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif name == "python" and arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            exec(arguments[1], {"__name__": "__main__"})
        elif name == "niels-gpt":
            sys.argv = list(command)
            from niels_gpt.cli.app import app

            app()
        else:
            assert name == "dvc", command
            sys.exit(_dvc(arguments))
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _dvc(arguments: list[str]) -> int:
    import gc
    import runpy

    import dvc.dvcfile
    import dvc.stage.run
    import dvc.utils.serialize._yaml
    import dvc.utils.strictyaml
    from dvc.cli import main

    repro = runpy.run_path(str(ROOT / "niels_gpt/pipeline/repro.py"))

    def run_stage(executable: str, cmd: str, *, cwd: str, env: dict[str, str], **_: Any) -> None:
        assert cmd.startswith("python -m "), f"{cmd} is no stage of this project"
        repro["run_forked"](cmd, lambda: become(cmd.split(), cwd=cwd, env=env))

    dvc.stage.run._run = run_stage
    dvc.dvcfile.modify_yaml = repro["modify_lock"]
    # DVC parses params.yaml again for each stage.
    parse = dvc.utils.serialize._yaml.parse_yaml
    dvc.utils.serialize._yaml.parse_yaml = dvc.utils.strictyaml.parse_yaml = _remembering(parse)
    code = main(arguments)
    gc.collect()  # before the interpreter shuts down: destructors left for later complain
    return code


def _remembering(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Return `parse`, which parses a text once and returns a copy of the result each time."""
    known: dict[tuple[str, str], Any] = {}

    def remembered(text: str, path: str, typ: str = "safe") -> Any:
        if typ != "safe":
            return parse(text, path, typ)
        if (text, path) not in known:
            known[text, path] = parse(text, path)
        return deepcopy(known[text, path])

    return remembered


if __name__ == "__main__":
    if sys.argv[2:]:
        with asked(sys.argv[1], sys.argv[2:], os.getcwd(), os.environ, (0, 1, 2)) as (_, wait):
            sys.exit(wait())
    serve(sys.argv[1])
