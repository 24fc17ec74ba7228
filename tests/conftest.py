"""Shared fixtures and hooks: a real DVC repository of tiny size, built once and copied for each test that needs one."""

import fcntl
import gc
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from ruamel.yaml import YAML

from niels_gpt.cli.console import apply_preset
from niels_gpt.pipeline.yaml_files import parse_yaml
from tests import fork_server
from tests.played_graphs import graphs  # noqa: F401  # a fixture
from tests.s3 import S3, running_s3

# Tests must also pass on a busy machine: no deadline, and slow generation of examples is no failure.
settings.register_profile("any load", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")

ROOT = Path(__file__).resolve().parent.parent
_DECLARED = parse_yaml((ROOT / "dvc.yaml").read_text(), name="dvc.yaml")["stages"]
STAGES: dict[str, dict[str, Any]] = {name: stage.get("do", stage) for name, stage in _DECLARED.items()}
ITERATED = {name for name, stage in _DECLARED.items() if "foreach" in stage}  # run once per source
TRAINED = ["train", "sft", "leak", "eval", "report", "splice", "memorize", "curves"]  # run again when p_train changes
TINY: dict[str, object] = {
    "tokenizer": {"kind": "byte", "corpus": "data/no-input.md"},
    "model.T": 32,
    "model.C": 16,
    "model.L": 1,
    "model.H": 2,
    "model.d_ff": 32,
    "train.total_steps": 40,
    "train.B": 8,
    "train.warmup_steps": 4,
    "train.eval_every": 20,
    "train.eval_steps": 2,
    "sft.total_steps": 12,
    "sft.B": 4,
    "sft.warmup_steps": 2,
    "sft.eval_every": 6,
    "sft.eval_steps": 2,
    "eval.max_new_tokens": 8,
    "splice.min_doc_length": 40,
    "splice.train.total_steps": 6,
    "splice.train.warmup_steps": 1,
    "splice.train.eval_every": 3,
    "memorize.chunk_size": 16,
    "memorize.prompt_tokens": 8,
    "leak.chunk_size": 32,
    "leak.prompt_tokens": 8,
    "runtime.threads": 1,
}


@cache
def forking() -> str:
    """Start the server of fork_server.py at the first call, and return its address."""
    return start_forking(os.environ)


def start_forking(env: Mapping[str, str]) -> str:
    """Start a fork server with this environment and return its address.

    The server ends with this process, which holds its stdin.
    """
    address = str(Path(mkdtemp(prefix="forking")) / "socket")
    command = [sys.executable, "-P", str(ROOT / "tests/fork_server.py"), address]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    _servers.append(server)
    return address


def run_forked(address: str, *command: str, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a process forked by the server at `address`."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err, Path(os.devnull).open() as nothing:
        fds = [file.fileno() for file in (nothing, out, err)]
        with fork_server.asked(address, command, str(cwd), env, fds) as (pid, wait):
            try:
                code = wait(_HANGS_S)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(command, code, *((file.seek(0), file.read())[1] for file in (out, err)))


_IN_ONE_PROCESS = """
import importlib, sys
from niels_gpt.pipeline.stage import execute
for name, _, key in (title.partition("@") for title in sys.argv[1:]):
    execute(name, key, importlib.import_module("stages." + name).main)
"""
_servers: list[subprocess.Popen[bytes]] = []
_HANGS_S = 1200  # a loaded machine may need ten minutes for the whole pipeline


@dataclass(frozen=True)
class Repo:
    """A checkout with a tiny corpus and tiny parameters."""

    path: Path

    def run(
        self, *command: str, check: bool = True, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command; `dvc`, `niels-gpt` and `python` are forked from the server of fork_server.py."""
        env = self.environment() | (env or {})
        if command[0] in ("dvc", "niels-gpt", "python"):
            done = run_forked(forking(), *command, cwd=self.path, env=env)
        else:
            how: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": _HANGS_S}
            done = subprocess.run(command, cwd=self.path, env=env, check=False, **how)
        if check and done.returncode:
            raise AssertionError(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def start(self, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a command in the background, in its own process group."""
        return subprocess.Popen(
            command,
            cwd=self.path,
            env=self.environment() | (env or {}),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def stage(self, name: str, key: str = "") -> subprocess.CompletedProcess[str]:
        """Run one stage without DVC, after the stage `code` if that has not run yet."""
        if not (self.path / "cache/code").exists():
            self.run("python", "-m", "stages.code")
        address = f"{name}@{key}" if key else name
        return self.run("python", "-m", f"stages.{name}", check=False, env={"DVC_STAGE": address})

    def repro(self, *arguments: str) -> list[str]:
        """Run `dvc repro` and return the stages whose command ran, in order."""
        return stages_run(self.run("dvc", "repro", *arguments).stdout)

    def run_here(self) -> subprocess.CompletedProcess[str]:
        """Run all stages in one process, without DVC's overhead per stage, and record them with `dvc commit`."""
        stages = self.run("dvc", "stage", "list", "--name-only").stdout.split()
        done = self.run("python", "-c", _IN_ONE_PROCESS, *stages)
        self.run("dvc", "commit", "--force")
        return done

    def environment(self) -> dict[str, str]:
        # Without PYTHONDONTWRITEBYTECODE, code is compiled once per repository, not once per stage.
        left_out = ("DVC_", "HF_", "PYTEST_", "PYTHONDONTWRITEBYTECODE")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
        return kept | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "DVC_SITE_CACHE_DIR": str(self.path.parent / f"{self.path.name}-site"),
            "HF_HOME": str(self.path.parent / f"{self.path.name}-hf"),
            "HF_HUB_OFFLINE": "1",
            "GIT_AUTHOR_NAME": "t",
            "GIT_AUTHOR_EMAIL": "t@example.invalid",
            "GIT_COMMITTER_NAME": "t",
            "GIT_COMMITTER_EMAIL": "t@example.invalid",
        }

    def set(self, **values: object) -> None:
        """Change parameters by dotted name (with __ for the dot); the rest of params.yaml and its comments are kept."""
        self.set_all({name.replace("__", "."): value for name, value in values.items()})

    def set_all(self, values: dict[str, object]) -> None:
        file = self.path / "params.yaml"
        text = file.read_text()
        file.write_text(with_values_in_place(text, values))

    def commit(self, message: str = "change") -> None:
        self.run("git", "add", "-A")
        self.run("git", "commit", "-qm", message, "--allow-empty")


def with_values(text: str, values: dict[str, object]) -> str:
    """Return the text of params.yaml with these values, without its comments, which take ten times as long to parse."""
    yaml = YAML(typ="safe")
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = False, False
    return _put(yaml, text, values)


def with_values_in_place(text: str, values: dict[str, object]) -> str:
    """Return the text of params.yaml with these values, its comments and its layout."""
    return apply_preset(text, _put(YAML(), text, values))


def _put(yaml: YAML, text: str, values: dict[str, object]) -> str:
    tree = yaml.load(text)
    for dotted, value in values.items():
        *parents, last = dotted.split(".")
        node = tree
        for part in parents:
            node = node[part]
        node[last] = value
    out = io.StringIO()
    yaml.dump(tree, out)
    return out.getvalue()


def keep_sample(folder: Path) -> None:
    """Make `folder` a git repository whose objects include the sample params.yaml, as in a clone."""
    subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
    command = ["git", "-C", str(folder), "hash-object", "-w", str(ROOT / "params.yaml")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def run_python(
    code: str, *arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program in a separate process, forked from one that has imported torch and other libraries."""
    return run_forked(forking(), "python", "-c", code, *arguments, cwd=cwd, env=os.environ if env is None else env)


def run_fresh_python(
    code: str, *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program in a separate process that has imported nothing."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)


def leaves(tree: Any, prefix: str = "") -> set[str]:
    """Return the dotted names of all values."""
    if not isinstance(tree, dict):
        return {prefix}
    return {leaf for key, value in tree.items() for leaf in leaves(value, f"{prefix}.{key}" if prefix else key)}


def stages_run(output: str) -> list[str]:
    return re.findall(r"^Running stage '(.+)':", output, flags=re.MULTILINE)


def make_repo(path: Path) -> Repo:
    """Make a repository of one commit: this checkout's code and configuration, part of its corpora, tiny parameters."""
    path.mkdir(parents=True)
    for name in ("stages", "niels_gpt", "presets", "scripts"):
        shutil.copytree(ROOT / name, path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dvc.yaml", ".gitignore", ".dvcignore", "pyproject.toml"):
        shutil.copy(ROOT / name, path / name)
    (path / ".dvc").mkdir()
    for name in ("config", ".gitignore", "plots_offline.html"):
        shutil.copy(ROOT / ".dvc" / name, path / ".dvc" / name)
    shutil.copytree(ROOT / ".dvc/plots", path / ".dvc/plots")
    shutil.copy(ROOT / "params.yaml", path)
    Repo(path).set_all(TINY)

    wiki = "data/wikitext/wikitext-103-raw-v1"
    (path / wiki).mkdir(parents=True)
    shutil.copy(ROOT / "data/wikitext/README.md", path / "data/wikitext/README.md")
    for split in ("train", "validation", "test"):
        articles = re.split(r"(?m)^(?= = [^=].* = $)", (ROOT / wiki / f"{split}.txt").read_text())
        (path / wiki / f"{split}.txt").write_text("".join(articles[:4]))
    for note in sorted((ROOT / "data/roam/daily").glob("*.md"))[:6]:
        (path / "data/roam").mkdir(exist_ok=True)
        shutil.copy(note, path / "data/roam" / note.name)
    shutil.copy(ROOT / "data/no-input.md", path / "data/no-input.md")
    dialogues = (ROOT / "data/primer.txt").read_text().split("\n\n<dialogue>\n\n")
    # With 13 dialogues, the held-out one has its answer within T.
    (path / "data/primer.txt").write_text("\n\n<dialogue>\n\n".join(dialogues[:13]))

    (path / "data/dolly").mkdir()
    rows = [{"instruction": f"say {i}", "context": "", "response": f"word {i}", "category": "x"} for i in range(12)]
    (path / "data/dolly/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "data/oasst1").mkdir()
    (path / "data/oasst1/train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tiny_trees()))

    repo = Repo(path)
    keep_sample(path)
    repo.commit("tiny")
    return repo


def tiny_trees() -> list[dict[str, Any]]:
    """Return eight trees of a question and two answers, short enough for a tiny context."""
    return [
        {
            "message_id": f"{tree}-{i}",
            "parent_id": None if i == 0 else f"{tree}-0",
            "role": "assistant" if i else "prompter",
            "text": f"hm {tree}{i}",
            "lang": "en",
            "deleted": False,
            "message_tree_id": f"tree{tree}",
        }
        for tree in range(8)
        for i in range(3)
    ]


@contextmanager
def real_browser() -> Iterator[tuple[Any, Any]]:
    """Yield (Chromium, playwright's `expect`); skip the test, with a reason, if either is not installed.

    A browser is a system package, which the machine's owner has to install. CI does.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no page was opened")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("chromium is not installed: no page was opened in a browser")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser, sync_api.expect
        browser.close()


def pytest_sessionstart() -> None:
    """Disable garbage collection while pytest collects tests: it takes a sixth of that time."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()  # later garbage collections need not scan thousands of tests and all modules
    gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """Return one process more than there are cores: tests wait for servers, other processes and the template."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put files with slow tests first, spread evenly over the test processes.

    Each process begins with an equal part of the list and later takes tests from the others. A slow test that comes
    last keeps all others waiting.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    dag, slow, quick = [], [], []
    for file in files.values():
        marks = {mark.name for item in file for mark in item.iter_markers()}
        (dag if "dag" in marks else slow if "slow" in marks else quick).append(file)
    dag.sort(key=lambda file: file[0].path.name not in ("test_readme.py", "test_smollm2.py", "test_dag_secrets.py"))
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    ordered, rest = [], (item for file in quick for item in file)
    for i in range(processes):
        share = [item for group in (dag, slow) for file in group[i::processes] for item in file]
        ordered += [*share, *islice(rest, max(0, len(items) // processes - len(share)))]
    items[:] = [*ordered, *rest]


_quick: list[str] = []  # id of the running test, if it is marked neither slow nor dag


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and _quick:
        command = arguments[1] if isinstance(arguments[1], str) else arguments[1][0]
        if re.match(r"python|dvc$|niels-gpt$|node$|chrom|torchrun$", Path(os.fsdecode(command)).name):
            raise AssertionError(f"{_quick[-1]} starts {command}: mark it with @pytest.mark.slow")


sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keep quick tests from starting Python, DVC or a browser, so that `make quick` stays quick."""
    marked = item.get_closest_marker("slow") or item.get_closest_marker("dag")
    _quick[:] = [] if marked else [item.nodeid]
    try:
        return (yield)
    finally:
        _quick.clear()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Limit torch to one thread, also in fixtures; a test that needs more sets them itself.

    On a busy machine, threads wait for one another longer than a tiny model computes.
    """
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_thread_again() -> Iterator[None]:
    """Take back the threads that a test has set."""
    import torch

    yield
    torch.set_num_threads(1)


SharedOnce = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def shared_once(tmp_path_factory: pytest.TempPathFactory) -> SharedOnce:
    """Return a function that makes a folder in the first test process to ask for it; the others wait for it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def folder_of(name: str, make: Callable[[Path], object]) -> Path:
        with (shared / f"{name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (shared / f"{name}.made").exists():
                make(shared / name)
                (shared / f"{name}.made").touch()
        return shared / name

    return folder_of


@pytest.fixture(scope="session")
def built_template(shared_once: SharedOnce) -> Repo:
    """Return a repository in which every stage has run once, for tests to copy."""

    def build(folder: Path) -> None:
        repo = make_repo(folder / "repo")
        repo.run_here()
        repo.commit("built")

    return Repo(shared_once("template", build) / "repo")


@pytest.fixture
def built_repo(built_template: Repo, tmp_path: Path) -> Iterator[Repo]:
    """Yield a repository in which every stage has run once."""
    shutil.copytree(built_template.path, tmp_path / "repo", symlinks=True)
    yield Repo(tmp_path / "repo")
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture
def fresh_repo(tmp_path: Path) -> Repo:
    """Return a repository in which no stage has run yet."""
    return make_repo(tmp_path / "repo")


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """Yield a server on loopback that this process and its children use as S3."""
    pytest.importorskip("moto", reason="moto is not installed: nothing was put into a bucket")
    with running_s3(tmp_path / "s3") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server
