"""Kill a run at a random instant, repair it and run it to its end: its results must equal an undisturbed run's.

Every trial uses a copy of a tiny pipeline in which one stage (each in turn) and all later ones have yet to run. That
stage has to compute; DVC restores the later ones from its run cache, so that DVC's own work (hashing, checking out,
writing dvc.lock) is hit as often as a stage's. Nothing is committed, so the repair depends on what the stages left
behind. KILL, TERM and INT are sent to DVC, to the stage, or to both.

Run: python -m bench.kills 100        (--seed chooses other instants)
"""

import argparse
import hashlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import yaml

from tests.conftest import Repo, make_repo

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
TARGETS = ("dvc", "stage", "group")
BETWEEN, WRITING = "(DVC, between stages)", "(DVC, writing dvc.lock)"
_WATCHDOG_S = 600.0
_ATTEMPTS = 5


@dataclass(frozen=True)
class Plan:
    """Target and time of a signal: seconds after the stage has started, or after DVC has emptied dvc.lock."""

    number: int
    stage: str
    signum: signal.Signals
    target: str
    writes: int  # of dvc.lock to wait for; 0: wait for the stage itself
    delay_s: float


@dataclass(frozen=True)
class Hit:
    plan: Plan
    where: str
    tries: int
    wrong: list[str]


def plans(n: int, stages: list[str], rng: random.Random) -> list[Plan]:
    """Yield all combinations of signal, target and stage, reshuffled for each round; one in three aims at a write of
    dvc.lock."""
    to_come = {stage: len(stages) - i for i, stage in enumerate(stages)}  # each of them writes dvc.lock
    blows, stages, made = list(itertools.product(SIGNALS, TARGETS)), list(stages), []
    for i in range(n):
        for cycle in (blows, stages):
            if not i % len(cycle):
                rng.shuffle(cycle)
        signum, target = blows[i % len(blows)]
        stage = stages[i % len(stages)]
        writes = rng.randint(1, min(3, to_come[stage])) if i % 3 == 2 and target != "stage" else 0
        delay_s = rng.uniform(0, 0.15) if writes else rng.choice((0.3, 1.0, 3.0)) * rng.random()
        made.append(Plan(i, stage, signum, target, writes, delay_s))
    return made


def build(root: Path) -> Repo:
    repo = make_repo(root / "template")
    repo.repro()
    return repo


def recorded(repo: Repo) -> dict[str, list[str]]:
    """Return the outputs of every stage in the order of dvc.lock, in which they ran."""
    stages = yaml.safe_load((repo.path / "dvc.lock").read_text())["stages"]
    return {name: [out["path"] for out in stage["outs"]] for name, stage in stages.items()}


def hashes(repo: Repo, outs: list[str]) -> dict[str, str]:
    """Return the SHA-256 of every output file and of dvc.lock."""
    files = [repo.path / "dvc.lock"]
    for out in outs:
        path = repo.path / out
        files += [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    return {
        path.relative_to(repo.path).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.exists()
    }


def rewind(repo: Repo, stage: str, outs: dict[str, list[str]]) -> None:
    """Restore the state before `stage` ran for the first time; DVC's run cache keeps the later stages."""
    lock = repo.path / "dvc.lock"
    head = lock.read_text().partition(f"\n  {stage}:\n")[0] + "\n"
    if head.endswith("\nstages:\n"):
        lock.unlink()  # `stage` was the first
    else:
        lock.write_text(head)
    names = list(outs)
    for name in names[names.index(stage) :]:
        for out in outs[name]:
            path = repo.path / out
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    for entry in (repo.path / ".dvc/cache/runs").glob("*/*/*"):
        if [out["path"] for out in yaml.safe_load(entry.read_text())["outs"]] == outs[stage]:
            shutil.rmtree(entry.parent)  # DVC fails on an empty folder
    shutil.rmtree(repo.path / "checkpoints", ignore_errors=True)
    (repo.path / ".dvc/tmp/dvc.lock.whole").unlink()


def running_stage(group: int) -> tuple[int, str] | None:
    """Return pid and name of the stage that runs in a process group."""
    for pid in psutil.pids():
        try:
            if os.getpgid(pid) == group and "-m" in (process := psutil.Process(pid)).cmdline()[1:2]:
                return pid, process.environ()["DVC_STAGE"]
        except (ProcessLookupError, psutil.Error, KeyError):
            continue
    return None


def emptied(lock: Path, writes: int, alive: subprocess.Popen[bytes]) -> None:
    """Wait until DVC has begun the given number of writes of dvc.lock."""
    was_empty = False
    while writes and alive.poll() is None:
        empty = lock.exists() and lock.stat().st_size == 0
        writes -= empty and not was_empty
        was_empty = empty


def strike(repo: Repo, plan: Plan) -> str | None:
    """Start a run and send the signal; return what was running then, or None if the run had ended."""
    with log_of(repo).open("wb") as log:
        dvc = subprocess.Popen(
            ["dvc", "repro"], cwd=repo.path, env=repo.environment(), stdout=log, stderr=log, start_new_session=True
        )
    if plan.writes:
        emptied(repo.path / "dvc.lock", plan.writes, dvc)
    else:
        while dvc.poll() is None and running_stage(dvc.pid) is None:
            time.sleep(0.005)
    time.sleep(plan.delay_s)
    stage = running_stage(dvc.pid)
    target = dvc.pid if plan.target == "dvc" or stage is None else stage[0]
    where = stage[1] if stage else WRITING if plan.writes else BETWEEN
    if dvc.poll() is not None:
        return None
    if plan.target == "group":
        os.killpg(dvc.pid, plan.signum)
    else:
        os.kill(target, plan.signum)
    dvc.wait(timeout=_WATCHDOG_S)
    return where


def finish(repo: Repo) -> int:
    """Repair and resume, as a user would; return the number of the attempt that succeeded, 0 if none did."""
    for number in (1, 2):
        repo.run("niels-gpt", "doctor", "--fix", "--params")
        done = repo.run("dvc", "repro", check=False)
        if not done.returncode:
            return number
        with log_of(repo).open("a") as log:
            log.write(done.stdout + done.stderr)
        deadline = time.monotonic() + _WATCHDOG_S
        while at_work(repo) and time.monotonic() < deadline:  # a stage may outlive its DVC
            time.sleep(0.1)
    return 0


def at_work(repo: Repo) -> bool:
    for pid in psutil.pids():
        try:
            if psutil.Process(pid).cwd() == str(repo.path):
                return True
        except psutil.Error:
            continue
    return False


def log_of(repo: Repo) -> Path:
    return repo.path.with_name("log")


def trial(template: Repo, plan: Plan, outs: dict[str, list[str]], expected: dict[str, str], keep: Path) -> Hit:
    where, repo = None, Repo(keep / str(plan.number) / "repo")
    for _ in range(_ATTEMPTS):
        shutil.rmtree(repo.path.parent, ignore_errors=True)  # it ended before the signal: try again
        shutil.copytree(template.path, repo.path, symlinks=True)
        rewind(repo, plan.stage, outs)
        where = strike(repo, plan)
        if where is not None:
            break
    else:
        sys.exit(f"{plan} was over before it was hit, {_ATTEMPTS} times: see {log_of(repo)}")
    tries = finish(repo)
    found = hashes(repo, [out for group in outs.values() for out in group])
    wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    if tries and not wrong:
        shutil.rmtree(repo.path.parent)
    hit = Hit(plan, where, tries, wrong if tries else ["dvc repro", *wrong])
    verdict = "equal" if not hit.wrong else f"DIFFERENT: {', '.join(hit.wrong)}; see {repo.path.parent}"
    print(f"{plan.number:>4} {plan.signum.name} to {plan.target:<6} in {where:<26}{verdict}", flush=True)
    return hit


def print_table(hits: list[Hit]) -> None:
    columns = [f"{signum.name[3:]} {target}" for signum in SIGNALS for target in TARGETS]
    count, good = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for hit in hits:
        cell = (hit.where, f"{hit.plan.signum.name[3:]} {hit.plan.target}")
        count[cell] += 1
        good[cell] += not hit.wrong
    print(f"\n{'hit while it ran':<26}" + "".join(f"{column:>12}" for column in columns))
    for where in sorted({hit.where for hit in hits}):
        cells = (f"{good[where, c]} of {count[where, c]}" if count[where, c] else "" for c in columns)
        print(f"{where:<26}" + "".join(f"{cell:>12}" for cell in cells))
    again = sum(hit.tries == 2 for hit in hits)
    print(f"\n{again} needed a second `dvc repro`, a stage of the first still being at work")
    print(f"{sum(not hit.wrong for hit in hits)} of {len(hits)} ended as an undisturbed run does")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", type=int, help="how many interruptions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="so many at a time")
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="kills-"))
    template = build(root)
    outs = recorded(template)
    expected = hashes(template, [out for group in outs.values() for out in group])
    todo = plans(asked.n, list(outs), random.Random(asked.seed))
    with ThreadPoolExecutor(asked.jobs) as pool:
        hits = list(pool.map(lambda plan: trial(template, plan, outs, expected, root), todo))
    print_table(hits)
    if any(hit.wrong for hit in hits):
        sys.exit(1)
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
