"""Tests of `niels-gpt run`: phases and progress from the output of DVC and stages; failures, Ctrl-C, last lines."""

import fcntl
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dvc.utils.serialize import modify_yaml
from rich.console import Console
from typer.testing import CliRunner

from niels_gpt.cli.app import app
from niels_gpt.cli.run import PHASES, Board, sparkline
from niels_gpt.config import ModelConfig
from niels_gpt.eval.ability import ability, best_temperature
from niels_gpt.files import messages
from niels_gpt.model.gpt import GPT
from niels_gpt.pipeline.params import parse_params
from niels_gpt.pipeline.repro import modify_lock
from niels_gpt.pipeline.stage import stage_titles
from niels_gpt.train.meter import StepReport, format_report, token_progress
from tests.conftest import ROOT

FAILED = "ERROR: failed to reproduce '{0}': failed to run: python -m stages.{0}, exited with 1"


pytestmark = pytest.mark.slow


@pytest.fixture
def titles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(ROOT)
    return stage_titles(parse_params((ROOT / "params.yaml").read_text())[1])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout whose `dvc` is a script that prints the file `lines` and exits with the status in `status`."""
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "data").symlink_to(ROOT / "data")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dvc").write_text('#!/bin/sh\necho "$@" > asked\ncat lines\nexit $(cat status)\n')
    (tmp_path / "bin/dvc").chmod(0o755)
    (tmp_path / "status").write_text("0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def running(*titles: str) -> list[str]:
    return [line for title in titles for line in (f"Running stage '{title}':", f"> python -m stages.{title}")]


def shown(board: Board) -> list[str]:
    """Return the lines that a terminal of 80 columns shows."""
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=True, color_system=None).print(board.table())
    return out.getvalue().splitlines()


def read(board: Board, lines: Sequence[str]) -> Board:
    for line in lines:
        board.read(line)
    return board


def report(step: int, *, loss: float, val_loss: float | None = None) -> str:
    facts = {"tokens": 10, "lr": 0.1, "tokens_per_second": 5.0, "asked": {"a": 1.0}, "drawn_rows": {"a": 1}}
    told = StepReport(step, 100, 0, loss=loss, val_loss=val_loss, utilisation=0.5, seconds_left=125.0, **facts)  # type: ignore[arg-type]
    return format_report(told)


def test_every_stage_is_in_one_phase(titles: list[str]) -> None:
    stages = {title.partition("@")[0] for title in titles}
    assert sorted(name for names in PHASES.values() for name in names) == sorted(stages)
    assert {"load@roam", "curves", "train"} <= set(titles)


def test_a_board_follows_training_by_its_own_lines(titles: list[str]) -> None:
    board = read(Board(titles), [*running("train"), report(10, loss=4.0), report(25, loss=3.5, val_loss=3.25)])
    phase = board.phases[3]
    assert (phase.name, phase.share, phase.left) == ("train", 0.25, "2 min 05 s")
    assert (phase.losses, phase.number) == ([4.0, 3.5], "loss 3.25")
    assert str(phase) == "train: 25%, 2 min 05 s left, loss 3.25"
    (line,) = [line for line in shown(board) if line.startswith("train")]
    assert "2 min 05 s left  loss 3.25  █▁" in line


def test_a_bar_goes_back_only_for_a_student_after_its_teacher(titles: list[str]) -> None:
    board, shares = read(Board(titles), running("train")), []
    for line in (report(25, loss=4.0), "train: 24% of 100 steps, 9 s left", report(100, loss=3.0), report(2, loss=5.0)):
        shares.append(read(board, [line]).phases[3].share)
    assert shares == [0.25, 0.25, 1.0, 0.02]


def test_a_loss_is_the_number_of_a_phase_that_trains_alone(titles: list[str]) -> None:
    board = Board(titles, lambda phase: f"number of {phase}")
    trained = [report(100, loss=2.0, val_loss=1.0)]
    read(board, [*running("train"), *trained, *running("splice"), *trained])
    assert [phase.number for phase in board.phases if phase.number] == ["loss 1.00", "loss 1.00"]
    read(board, running("leak", "eval", "memorize", "report"))
    assert [phase.number for phase in board.phases if phase.number] == ["loss 1.00", "number of check"]


def test_progress_without_a_terminal_is_lines_that_a_board_reads(
    titles: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(messages, "_LINE_EVERY_S", 0.0)
    board = read(Board(titles), running("eval"))
    with messages.progress(total=2000, unit=" tokens", title="eval") as bar:
        bar.update(500)
        bar.update(9999)  # the total may be an estimate
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("eval: 25% of 2,000 tokens, ")
    assert last == "eval: 99% of 2,000 tokens, 0 s left"
    board.read(first)
    assert first == f"eval: {board.phases[5].share:.0%} of 2,000 tokens, {board.phases[5].left} left"
    with messages.progress(total=None, unit="B", title="load@a") as bar:
        bar.update(1500)
    assert capsys.readouterr().err == "load@a: 1,500 B\n"


def test_progress_of_models_counts_their_tokens_and_changes_no_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(messages, "_LINE_EVERY_S", 0.0)
    torch.manual_seed(0)
    model, x = GPT(ModelConfig(V=16, T=8, C=8, L=1, H=2, d_ff=8)).eval(), torch.arange(8)[None]
    before = model(x)
    with token_progress([model], total=16, title="eval"):
        assert torch.equal(model(x), before)
    assert capsys.readouterr().err.startswith("eval: 50% of 16 tokens, ")
    model(x)
    assert capsys.readouterr().err == ""


def test_lines_are_printed_when_phases_start_and_end_and_between(
    titles: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("niels_gpt.cli.run.time", SimpleNamespace(monotonic=lambda: 0.0))
    board = Board(titles, lambda phase: "9 documents" if phase == "read" else "")
    skipped = [f"Stage '{title}' didn't change, skipping" for title in titles if title not in ("train", "load@roam")]
    for lines in (running("load@roam"), skipped, running("train")):
        read(board, lines)
        board.print_changes()
        board.print_changes()
    assert capsys.readouterr().out.splitlines()[:3] == [
        "read: 0%, load@roam 0 s",
        "read: 0 s, 9 documents",
        "split: unchanged",
    ]
    monkeypatch.setattr("niels_gpt.cli.run._HEARTBEAT_S", 0.0)
    board.print_changes()
    assert capsys.readouterr().out == "train: 0%, 0 s\n"


def test_a_curve_is_drawn_from_losses() -> None:
    assert sparkline([]) == ""
    assert sparkline([2.0, 2.0]) == "▄▄"
    assert sparkline([3.0, 2.0, 1.0]) == "█▅▁"
    assert len(sparkline([float(i) for i in range(1000)])) == 16


def test_a_run_passes_its_arguments_on_and_names_its_log(project: Path) -> None:
    (project / "lines").write_text("\n".join(running("load@roam", "load@wiki")) + "\n")
    result = CliRunner().invoke(app, ["run", "-f", "load@roam", "--single-item"])
    assert result.exit_code == 0, result.output
    assert (project / "asked").read_text() == "repro -f load@roam --single-item\n"
    assert (project / "logs/run.log").read_text() == (project / "lines").read_text()
    assert result.stdout.endswith("done; `niels-gpt run` runs the other stages (all lines are in logs/run.log)\n")


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["load@roam: 3 documents", "ERROR: load@roam: data/x holds no text", FAILED.format("load")], "data/x holds"),
        (["Traceback (most recent call last):", "KeyError: 'tokens'", "", FAILED.format("load")], "KeyError: 'tokens'"),
        (["ERROR: Unable to acquire lock.", FAILED.format("load")], "Unable to acquire lock."),
    ],
)
def test_a_failure_is_one_sentence_with_the_log(project: Path, lines: list[str], sentence: str) -> None:
    (project / "lines").write_text("\n".join([*running("load@roam"), *lines]) + "\n")
    (project / "status").write_text("255")
    result = CliRunner().invoke(app, ["run"])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("ERROR: ")
    assert sentence in line
    assert line.endswith("(all lines are in logs/run.log)")


def test_bad_parameters_and_a_foreign_report_are_refused_before_anything_runs(project: Path) -> None:
    (project / "report.html").write_text("mine")
    assert "report.html exists and was not written by this command" in CliRunner().invoke(app, ["run"]).stderr
    (project / "params.yaml").write_text("seeed: 1\n")
    result = CliRunner().invoke(app, ["run"])
    assert result.exit_code == 1
    assert "ERROR: params.yaml: seeed is not a parameter; did you mean seed?" in result.stderr
    (project / "dvc.yaml").unlink()
    assert "there is no dvc.yaml here: run this in the project's folder" in CliRunner().invoke(app, ["run"]).stderr
    assert not (project / "asked").exists()


def test_leftovers_of_an_interruption_are_repaired_first(project: Path) -> None:
    (project / "lines").write_text("")
    (project / "dvc.lock").write_text("")  # as DVC leaves it when it is killed
    assert CliRunner().invoke(app, ["run", "code"]).stdout.startswith("dvc.lock was half-written and was deleted")


def test_a_second_run_is_refused_while_the_first_one_runs(project: Path) -> None:
    (project / "logs").mkdir()
    (project / "logs/run.log").write_text("the first\n")
    with (project / "logs/run.log").open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        result = CliRunner().invoke(app, ["run"])
    assert result.exit_code == 1
    assert "`niels-gpt run` is running here already; logs/run.log has what it prints" in result.stderr
    assert (project / "logs/run.log").read_text() == "the first\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_reaches_the_stage_and_how_to_continue_is_said(project: Path, number: signal.Signals) -> None:
    (project / "bin/stage").write_text(
        """#!/bin/sh
trap 'echo train: stopped and saved; exit 130' INT
echo "Running stage 'train':"
while :; do sleep 0.1; done
"""
    )
    (project / "bin/dvc").write_text(
        f"""#!{sys.executable}
import signal, subprocess
stage = subprocess.Popen(["sh", "bin/stage"])
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as DVC does while a stage runs
raise SystemExit(stage.wait())
"""
    )
    # Background jobs of a shell ignore Ctrl-C, and so do their children: restore Python's handler.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{heard}; from niels_gpt.cli.app import app; app()", "run"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("train: "):
            assert process.poll() is None
        process.send_signal(number)
        _, said = process.communicate()
    assert process.returncode == 130
    assert said == "stopped; `niels-gpt run` continues from there (all lines are in logs/run.log)\n"
    assert "train: stopped and saved\n" in (project / "logs/run.log").read_text()


STAGE = """
import os, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

def double(n):
    return 2 * n

if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        print(sys.argv, os.getcwd(), os.environ["DVC_STAGE"], pool.submit(double, 21).result())
    sys.exit(3 if sys.argv[0].endswith("exits.py") else 0)
"""


def test_a_stage_in_a_fork_prints_and_ends_as_in_a_process_of_its_own(tmp_path: Path) -> None:
    names = ["exits", "raises", "unknown", "works"]
    (tmp_path / "stages").mkdir()
    for name in ("__init__", "exits", "works"):
        (tmp_path / f"stages/{name}.py").write_text(STAGE)
    (tmp_path / "stages/raises.py").write_text("import json\njson.loads('{')\n")
    stages = "".join(f"  {name}:\n    cmd: python -m stages.{name}\n" for name in names)
    (tmp_path / "dvc.yaml").write_text(f"stages:\n{stages}  shell:\n    cmd: echo $DVC_STAGE && exit 5\n")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "DVC_SITE_CACHE_DIR": str(tmp_path / "site")}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        how: Any = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
        return subprocess.run([sys.executable, "-m", *command], check=False, **how)

    run("dvc", "init", "--no-scm")
    theirs = run("dvc", "repro", "--keep-going", "--force")
    (tmp_path / "dvc.lock").unlink()
    ours = run("niels_gpt.pipeline.repro", "--keep-going", "--force")
    assert ours.returncode == theirs.returncode == 255
    assert ours.stdout == theirs.stdout
    assert f"['{tmp_path}/stages/works.py'] {tmp_path} works 42" in ours.stdout
    assert "JSONDecodeError" in ours.stderr


def test_a_stage_is_recorded_in_the_bytes_that_dvc_writes(tmp_path: Path) -> None:
    """Entries are added, replaced and removed; they include values that YAML writers format differently."""
    values = [1e-5, 3.0, 10**18, None, True, "", " a", "2.0", "yes", "null", "~", "1e-05", "0o17", "a: b", [], {}]
    values += [
        "# Bread\n\n",
        "it's #1",
        "word " * 40,
        "é 😀",
        "tab\t",
        [],
        {},
        [{"a": [None]}, {}],
        {"x": {"y": [1, 2]}},
    ]
    entry = {"cmd": "python -m stages.new", "params": {f"v{i}": value for i, value in enumerate(values)}}
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    committed = (ROOT / "dvc.lock").read_text(encoding="utf-8")
    for before in (None, committed, committed + "datasets: []\n"):
        locks = []
        for modify in (modify_yaml, modify_lock):
            lock = tmp_path / "dvc.lock"
            lock.unlink(missing_ok=True)
            if before is not None:
                lock.write_text(before, encoding="utf-8")
            for name, recorded in (("new@a", entry), ("new@b", {}), ("new@a", {**entry, "deps": values})):
                with modify(str(lock)) as content:
                    content.setdefault("schema", "2.0")
                    content.setdefault("stages", {}).update({name: recorded})
                    content["stages"].pop("sft" if name == "new@b" else "", None)
                locks.append(lock.read_bytes())
        assert locks[:3] == locks[3:]
        assert b"new@b" in locks[2]
        assert os.listdir(tmp_path / ".dvc/tmp") == []


def test_what_a_model_can_do_follows_its_report_card() -> None:
    known = {"words": 0.9, "spelling": 0.98, "closing": 8.0, "form": 0.8, "repetition": 0.0}
    worst = ability({**known, "words": 0.3, "spelling": 0.3})
    assert worst.startswith("Your model does not form words yet: 30% of what it writes are words of its training text.")
    for worse in ({"closing": 1.0}, {"repetition": 0.9}):
        assert ability({**known, **worse}).startswith("Your model forms words, not sentences: ")
    assert ability(known).startswith("Your model writes sentences: ")
    assert best_temperature(known) == 0.2
    assert best_temperature({**known, "repetition": 0.9}) == best_temperature({}) == 0.8
