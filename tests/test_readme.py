"""Tests that a newcomer who reads only the README succeeds: they run its commands, except those in ELSEWHERE."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from niels_gpt.pipeline.params import parse_params
from niels_gpt.pipeline.results import read_metrics
from tests import first_day
from tests.conftest import ROOT, TRAINED, Repo, forking, leaves, stages_run

README = (ROOT / "README.md").read_text()
EXPERIMENTS = (ROOT / "docs/experiments.md").read_text()


def lines_of_blocks(page: str) -> list[str]:
    """Return the commands of the page's bash blocks, in order."""
    blocks = re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL)
    # The block with INIT is the beginning of docs/first-day.md, and run by `first_day.walk`.
    shown = [line for block in blocks if first_day.INIT not in block for line in block.splitlines()]
    return [line.split("#")[0].strip() for line in shown if line.strip()]


def commands_in_the_text(page: str) -> set[str]:
    """Return the commands outside of the page's blocks."""
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    return set(re.findall(r"`((?:dvc|git|niels-gpt|make|source) [^`]+)`", text))


COMMANDS = lines_of_blocks(README)
# Run after the blocks, in this order.
IN_THE_TEXT = [
    "dvc plots show",
    "dvc exp show --only-changed --drop '.*/'",
    "dvc metrics diff",
    "niels-gpt inspect tokenizer",
    "niels-gpt inspect batch --sft",
    "niels-gpt inspect documents --duplicates",
    "niels-gpt doctor --params",
]
WEIGHT = "dvc exp run -S p_train.roam=0.3"
UNDO = "git checkout params.yaml && dvc repro"
# Commands that are not run here, with the reason or the test that runs something similar.
ELSEWHERE = {
    "source .venv/bin/activate": "the environment is the one that the tests run in",
    "niels-gpt preset v2": "test_cli.py writes presets; the data of this one are on the hub",
    "dvc exp run --queue -S p_train.roam=0.1,0.3,0.5": "test_dag_experiments.py works off a queue",
    "dvc queue start": "test_dag_experiments.py",
    "dvc queue status": "test_dag_experiments.py",
    "dvc plots diff afoul-gnat salic-tods swept-heir --targets metrics/train_mix.tsv metrics/train_val.tsv": "these "
    "names are those of the page's own sweep; test_dag_pages.py draws the plots",
    "dvc exp apply swept-heir": "the same; each experiment here is applied as it ends",
    "dvc exp remove afoul-gnat salic-tods": "the same; the first day's walk removes all",
    "dvc checkout": "DVC's own: what it deletes is not asked of it here",
    "git checkout dvc.lock metrics params.yaml && dvc checkout": "git's and DVC's own; test_cli.py commits these files",
    "dvc push": "test_dag_share.py pushes to two stores",
    "make baseline": "test_cli.py commits one",
    "niels-gpt compare A B": "test_compare.py compares by name",
    "dvc repro -f -s train": "test_dag_resume.py forces a run twice",
    "niels-gpt join train": "test_hosts.py joins from a second checkout",
    "niels-gpt doctor --fix": "test_dvc_files.py, and in `make run`",
    "make base": "installs a wheel of 93 MB",
    "niels-gpt init ~/notes --from smollm2": "test_init.py plans it, test_base_stages.py runs its stages",
    "niels-gpt new my-model ~/notes": "test_new.py, with an installed wheel",
    "niels-gpt run": "the first day's walk, and `make run`",
    "niels-gpt report --to": "test_track.py sends curves to two trackers",
    "niels-gpt benchmark": "test_benchmark.py scores sets with lm-eval, an optional package",
}


def test_the_two_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    asked = {command.split()[1] for command in COMMANDS if command.startswith("make ")}
    assert asked == {"run", "test"} <= targets


def test_make_run_is_the_command_that_mends_runs_and_reports() -> None:
    # Called from `make test`, make would print the directories that it enters.
    make = ("make", "--no-print-directory", "-n", "-o", ".venv/.installed", "run")
    shown = subprocess.check_output(make, cwd=ROOT, text=True)
    assert shown.splitlines() == ["niels-gpt run"]


def test_every_command_in_the_text_is_run_or_is_known_to_be_run_elsewhere() -> None:
    named = commands_in_the_text(README) | commands_in_the_text(EXPERIMENTS) | set(lines_of_blocks(EXPERIMENTS))
    shown = [command for command in named if not any(line.startswith(command) for line in COMMANDS)]
    assert sorted(shown) == sorted([*IN_THE_TEXT, UNDO, *ELSEWHERE])


@pytest.mark.dag
def test_a_script_of_the_readmes_commands_passes(built_repo: Repo, tmp_path: Path) -> None:
    """All commands of the blocks pass in order, except `make test`, which runs this test, and then those in the text.

    They run at a tiny size, in the existing environment, with a commit that refers to weights from another machine.
    Experiments run only the stages that depend on the change, and the metrics report what was sampled.
    """
    repo = built_repo
    shutil.copy(ROOT / "Makefile", repo.path)
    repo.commit("make")
    put_forked(repo.path / ".venv/bin")  # CI runs `make run` with the plain commands, in a fresh clone
    shutil.copytree(ROOT / "data/roam", tmp_path / "home/notes")
    make_run = ("make", "run", "-o", ".venv/.installed")  # the environment is installed, as at a second `make run`
    made: dict[str, bytes] = {}
    said: dict[str, str] = {}
    for command in COMMANDS:
        words = shlex.split(command)
        if command == "make test":
            continue
        if command == "make run":
            repo.run(*make_run)
            made = models(repo)
            commit_foreign_weights(repo)
        elif words[1] == "serve" or "--live" in words:
            serve_and_stop(repo, *words)
        else:
            said[command] = repo.run(*words).stdout
    assert (repo.path / "my-model/model.safetensors").is_file()
    assert sorted(stages_run(said[WEIGHT])) == sorted(TRAINED)
    assert_drawn_as_asked(repo, p=0.3 / 1.04, rows=40 * 8)
    assert "p_train.roam" in repo.run("dvc", "params", "diff").stdout
    for command in IN_THE_TEXT:
        said[command] = repo.run(*shlex.split(command)).stdout
    shown = repo.run("dvc", "exp", "show", "--only-changed", "--csv").stdout  # a table would be truncated
    assert "p_train.roam" in shown
    assert "0.3" in shown
    assert "metrics/eval.json" in said["dvc metrics diff"]
    assert models(repo) != made  # trained on another mix
    for command in UNDO.split(" && "):
        said[command] = repo.run(*shlex.split(command)).stdout
    assert stages_run(said["dvc repro"]) == []
    assert said["dvc repro"].count("is cached - skipping run, checking out outputs") >= 6
    assert models(repo) == made

    lock = repo.path / "dvc.lock"
    whole = lock.read_text()
    lock.write_text("")  # as DVC leaves it when it is interrupted
    assert "dvc.lock was half-written" in repo.run(*make_run).stdout
    assert lock.read_text() == whole
    assert models(repo) == made
    first_day_walk(repo, tmp_path / "home")


def first_day_walk(repo: Repo, home: Path) -> None:
    """Run docs/first-day.md in the same repository, where the sample's chats do not have to be made again."""
    sample = (repo.path / "params.yaml").read_text()
    repo.run("dvc", "exp", "remove", "--all-commits")  # on the first day there are no experiments
    said = first_day.walk(repo, home)
    assert first_day.not_in_the_transcript(said, home) == []
    assert all(rows_on_a_terminal(said[command][0].splitlines()) <= 25 for command in first_day.DAY[1:])
    (before,) = re.findall(r"`git checkout (\S+) params.yaml` restores the previous one", said[first_day.INIT][0])
    assert repo.run("git", "show", f"{before}:params.yaml").stdout == sample
    (first,), (back,) = said[first_day.LOG], said["dvc repro"]
    assert {"load@notes", "split@notes", "tokenize@notes", *TRAINED} <= set(stages_run(first))
    assert not {stage for stage in stages_run(first) if stage in ("load@dolly15k", "load@oasst1", "load@dialogues")}
    (experiment,) = (printed for command, printed in said.items() if command.startswith("dvc exp run"))
    ran, tuned = set(stages_run(experiment[0])), {"eval", "leak", "report", "sft"}
    assert ran == tuned
    assert stages_run(back) == []
    mix = json.loads((repo.path / "cache/mix.json").read_text())
    assert list(mix["sources"]) == ["notes"]
    assert (repo.path / "my-notes-model/model.safetensors").is_file()


def test_the_first_day_is_four_commands_that_print_what_the_page_shows() -> None:
    """Each prints at most 25 lines of 80 columns, all of them on the page, which has at most 150 lines."""
    assert len(first_day.PAGE.splitlines()) <= 150
    setup, *day = first_day.DAY
    assert len(day) <= 3
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert setup.split(" && ")[0].split() == ["make", "install"]
    assert "install" in targets
    shown = re.findall(r"```text\n(.*?)```", first_day.PAGE, re.DOTALL)
    assert len(shown) == len(day)
    for command, block in zip(day, shown, strict=True):
        lines = first_day.SECTIONS[command]
        assert 0 < rows_on_a_terminal(lines) <= 25
        assert block.splitlines() == [line for line in lines if line != ">"]  # the chat's prompt


def rows_on_a_terminal(lines: list[str]) -> int:
    return sum(max(1, -(-len(line) // 80)) for line in lines)


def assert_drawn_as_asked(repo: Repo, *, p: float, rows: int) -> None:
    """Check the sampled rows of the notes in the metrics: a share of `p`, within 4 standard errors."""
    roam = read_metrics(repo.path / "metrics/train.json")["mix"]["roam"]
    assert roam["p"] == pytest.approx(p)
    error = (p * (1 - p) / rows) ** 0.5
    assert abs(roam["drawn"] - p) < 4 * error
    assert roam["rows"] == round(roam["drawn"] * rows)


def models(repo: Repo) -> dict[str, bytes]:
    found = {path.as_posix(): path.read_bytes() for path in sorted((repo.path / "models").rglob("*.pt"))}
    assert len(found) == 6
    return found


def commit_foreign_weights(repo: Repo) -> None:
    """Commit the run as if made on another machine: the same data, other weights. The workspace keeps its own."""
    lock = repo.path / "dvc.lock"
    own = lock.read_text()
    foreign = re.sub(r"(path: models/.*\n *hash: md5\n *md5: )(\w+)", lambda match: match[1] + match[2][::-1], own)
    assert foreign != own
    lock.write_text(foreign)
    repo.commit("run")
    lock.write_text(own)


def put_forked(folder: Path) -> None:
    """Write `dvc` and `niels-gpt` for make to find, which ask the fork server; all else is from this environment."""
    folder.mkdir(parents=True)
    ask = shlex.join([sys.executable, "-I", "-S", str(ROOT / "tests/fork_server.py"), forking()])
    for name in ("dvc", "niels-gpt"):
        (folder / name).write_text(f'#!/bin/sh\nexec {ask} {name} "$@"\n')
        (folder / name).chmod(0o755)


def serve_and_stop(repo: Repo, *command: str) -> None:
    server = repo.start(*command, "--port", "0")
    assert server.stdout is not None
    try:
        address = server.stdout.readline().split()[0]
        assert "niels_gpt" in urllib.request.urlopen(address, timeout=120).read().decode()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=120)


def test_the_table_names_existing_parameters() -> None:
    table = EXPERIMENTS.split("## Parameters to change first")[1].split("\n\n")[1]
    given = parse_params((ROOT / "params.yaml").read_text())[0].model_dump()  # with optional parameters
    known = {re.sub(r"^(sources|p_\w+)\.\w+", r"\1.NAME", leaf) for leaf in leaves(given)}
    for row in re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE):
        first, *others = re.findall(r"`(.*?)`", row)
        assert {first, *(f"{first.rpartition('.')[0]}.{other}" for other in others)} <= known


def test_the_tree_names_every_package_and_no_missing_file() -> None:
    tree = README.split("## The tree")[1].split("```")[1]
    for module in (ROOT / "niels_gpt").iterdir():
        if module.name not in ("__init__.py", "__pycache__"):
            assert module.name in tree, module.name
    named = set(re.findall(r"\b[a-z_0-9]+\.py\b", tree))
    existing = {path.name for top in ("niels_gpt", "stages") for path in (ROOT / top).rglob("*.py")}
    assert named <= existing
