"""`python -m bench.mutants [WORD...]`: plants faults one at a time in a copy and runs the tests that could notice.

A test suite is worth what it notices. Each fault of the lists beside this file (all, or those with one of the WORDs in
their list's, file's or own name) is a line made wrong; a fault that no test notices is a survivor, and stands in the
table with the reason why it may. Children are forked from a process that has imported what is slow to import, so that a
fault costs a few seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from pkgutil import iter_modules

from bench import mutants
from bench.mutants.fault import Fault

ROOT = Path(__file__).resolve().parent.parent.parent
_PATIENCE_S = 300  # a fault that makes a test wait for ever has been noticed
_WORKERS = 2


def faults(words: list[str]) -> list[tuple[str, Fault]]:
    """(list, fault) of every list beside this file."""
    areas = [
        module.name for module in iter_modules(mutants.__path__) if module.name not in ("__main__", "campaign", "fault")
    ]
    every = [(area, fault) for area in areas for fault in import_module(f"bench.mutants.{area}").FAULTS]
    return [
        (area, fault)
        for area, fault in every
        if not words or any(word in text for word in words for text in (area, fault.file, fault.name))
    ]


def copy_of_the_project(folder: Path) -> None:
    """What git tracks, as it lies in the working tree."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in tracked.decode().split("\0")[:-1]:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


@contextmanager
def planted(fault: Fault, folder: Path) -> Iterator[None]:
    file = folder / fault.file
    whole = file.read_text(encoding="utf-8")
    if (times := whole.count(fault.before)) != 1:
        raise ValueError(f"{fault.name}: {fault.before!r} stands {times} times in {fault.file}, not once")
    file.write_text(whole.replace(fault.before, fault.after), encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(whole, encoding="utf-8")


def run_tests(tests: str, folder: Path, log: Path) -> int | None:
    """pytest's exit code, None where it had to be stopped. In a fork of this process, which has torch in memory."""
    child = os.fork()
    if child == 0:
        _become_pytest(tests.split(), folder, log)
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, 9)
    os.waitpid(child, 0)
    return None


def _become_pytest(tests: list[str], folder: Path, log: Path) -> None:
    """Never returns."""
    code = 70
    try:
        os.setsid()
        with log.open("w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        os.chdir(folder)
        sys.path[:0] = [str(folder)]
        os.environ["PYTHONPATH"] = str(folder)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a file changed twice within a second keeps its bytecode
        sys.dont_write_bytecode = True
        import pytest

        arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", f"--rootdir={folder}"]
        code = int(pytest.main([*arguments, f"--basetemp={folder}-tests", *tests]))
    finally:
        sys.stdout.flush()
        os._exit(code)


# pytest's codes for a list that is wrong: an unknown test, and none at all. Any other is of tests that did not pass.
_VERDICTS = {0: "SURVIVED", 4: "NO VERDICT: no such test", 5: "NO VERDICT: no such test", None: "noticed (it hung)"}


def _work(jobs: list[tuple[str, Fault]], folder: Path, results: object) -> None:
    import_heavy()
    copy_of_the_project(folder)
    for area, fault in jobs:
        start = time.monotonic()
        try:
            with planted(fault, folder):
                code = run_tests(fault.tests, folder, folder.with_suffix(".log"))
            verdict = _VERDICTS.get(code, "noticed")
        except (ValueError, OSError) as error:
            verdict = f"NO VERDICT: {error}"
        results.put((area, fault, verdict, time.monotonic() - start))  # type: ignore[attr-defined]


def import_heavy() -> None:
    """Everything that tests import and that no fault is planted in."""
    for name in ("torch", "numpy", "pyarrow.parquet", "pydantic", "pytest", "hypothesis", "ruamel.yaml", "typer"):
        import_module(name)


def main() -> None:
    words = sys.argv[1:]
    if unknown := [word for word in words if not faults([word])]:
        sys.exit(f"no fault has {' or '.join(unknown)} in its list's, file's or own name")
    chosen = faults(words)
    context = get_context("spawn")
    results = context.Queue()
    survivors, unclear = [], []
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        workers = [
            context.Process(target=_work, args=(chosen[i::_WORKERS], Path(scratch) / f"copy{i}", results))
            for i in range(_WORKERS)
        ]
        for worker in workers:
            worker.start()
        for _ in chosen:
            area, fault, verdict, seconds = results.get(timeout=_PATIENCE_S + 600)
            if verdict == "SURVIVED":
                survivors.append(fault)
                verdict += f" ({fault.survives})" if fault.survives else ""
            elif verdict.startswith("NO VERDICT"):
                unclear.append(fault)
            print(f"{area:<10}{fault.file:<38}{fault.name:<52}{verdict} {seconds:.0f} s", flush=True)
        for worker in workers:
            worker.join()
    noticed = len(chosen) - len(survivors) - len(unclear)
    print(f"\n{noticed} of {len(chosen)} noticed ({noticed / len(chosen):.1%}), {len(survivors)} survived", end="")
    print(f", {len(unclear)} without a verdict" if unclear else "")
    if unclear or any(not fault.survives for fault in survivors):
        sys.exit(1)
