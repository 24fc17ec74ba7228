"""niels-gpt run: the DAG by `dvc repro`, shown as a line per phase; then what the model can do, and samples."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from niels_gpt.cli.console import refuse_foreign
from niels_gpt.cli.new import refuse_other_version
from niels_gpt.data.corpus.parts import MANIFEST
from niels_gpt.eval.ability import ability, best_temperature
from niels_gpt.files.checks import read_meta
from niels_gpt.files.messages import format_duration, visible
from niels_gpt.leak.page import verdict
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.external_checks import problems_around
from niels_gpt.pipeline.params import Params, read_params
from niels_gpt.pipeline.repository import mend
from niels_gpt.pipeline.results import final_models, read_metrics, read_result
from niels_gpt.pipeline.stage import stage_titles
from niels_gpt.pipeline.yaml_files import ParamsError, Problem

if TYPE_CHECKING:
    from rich.console import Group

LOG = layout.LOGS / "run.log"
PHASES = {  # the stages of each phase; DVC may run them in another order
    "read": ("code", "base", "load"),
    "split": ("duplicates", "split", "index"),
    "tokenize": ("tokenizer", "tokenize", "cache"),
    "train": ("train",),
    "fine-tune": ("sft",),
    "check": ("leak", "eval", "splice", "memorize"),
    "report": ("curves", "report"),
}
_POLL_S, _HEARTBEAT_S = 0.25, 4.0  # between looks at the log; between lines where there is no terminal

# Lines of DVC and of stages that say how far a run is; tests/test_run.py compares them with what prints them.
_STAGE = re.compile(r"(Running stage|Stage) '(?:.*:)?([^':]+)'")
_SHARE = re.compile(r".*: (\d+)% of [\d,]+ \w+, (.+) left$")
_STEP = re.compile(r"step +(\d+)/(\d+)  loss (\S+)  (?:val (\S+)  )?.*  (\S[^()]*) left  ")


@dataclass
class Phase:
    """Phase of a run: its stages that are still to come, and what the running one has reported."""

    name: str
    stages: frozenset[str]
    waiting: set[str]
    running: str = ""  # stage
    since: float = 0.0  # when it was started
    ran: bool = False
    seconds: float = 0.0  # of its stages that have ended
    share: float = 0.0  # of the running stage, 0 to 1
    left: str = ""
    losses: list[float] = field(default_factory=list)
    number: str = ""
    printed: str = ""  # state

    def advance(self, share: float, *, left: str) -> None:
        """Set what is done of the running stage: a little less is a rounding, much less a student after its teacher."""
        self.share, self.left = share if share < self.share - 0.05 else max(share, self.share), left

    @property
    def duration(self) -> str:
        """Return the time left of the running stage, if known, or the time that it or the phase has taken."""
        if not self.running:
            return format_duration(self.seconds) if self.ran else "unchanged" if not self.waiting else ""
        told = f"{self.left} left" if self.left else format_duration(time.monotonic() - self.since)
        return told if len(self.stages) == 1 else f"{self.running} {told}"

    @property
    def done(self) -> float:
        """Return the part that is done, 0 to 1, its stages counted alike."""
        return (len(self.stages) - len(self.waiting) + self.share) / max(1, len(self.stages))

    def __str__(self) -> str:
        share = f"{self.done:.0%}, " if self.waiting else ""
        return f"{self.name}: {share}{self.duration}{', ' * bool(self.number)}{self.number}"


class Board:
    """State of a run, from the lines that DVC and its stages print."""

    def __init__(self, titles: Sequence[str], number_of: Callable[[str], str] = str) -> None:
        of = {name: {t for t in titles if t.partition("@")[0] in stages} for name, stages in PHASES.items()}
        self._number_of = number_of  # the number that matters of a finished phase, by its name
        self.phases = [Phase(name, frozenset(own), own) for name, own in of.items()]
        self.running: Phase | None = None
        self.error = self.last = ""
        self.note = "looking for what has changed"
        self._start = self._printed = time.monotonic()

    def read(self, line: str) -> None:
        """Take one line of the log into account."""
        if found := _STAGE.match(line):
            self.end_stage()
            phase = next((phase for phase in self.phases if found[2] in phase.stages), None)
            if phase is not None and found[1] == "Stage":  # unchanged, or restored from DVC's cache
                self._tick_off(phase, found[2])
            elif phase is not None:
                self.running, self.note = phase, "running"
                phase.running, phase.ran, phase.since = found[2], True, time.monotonic()
        elif self.running and (found := _STEP.match(line)):
            self.running.advance(int(found[1]) / int(found[2]), left=found[5])
            self.running.losses.append(float(found[3]))
            self.running.number = f"loss {float(found[4] or found[3]):.2f}"
        elif self.running and (found := _SHARE.match(line)):
            self.running.advance(int(found[1]) / 100, left=found[2])
        elif line.startswith("ERROR: ") and "failed to reproduce" not in line:  # DVC's names the stage only
            self.error = line.removeprefix("ERROR: ")
        elif line.strip() and not line.startswith("ERROR: "):
            self.last = line.strip()

    def end_stage(self) -> None:
        """Mark the running stage, if any, as done."""
        if phase := self.running:
            phase.seconds += time.monotonic() - phase.since
            if len(phase.stages) > 1:  # a loss is the number of a phase that trains, and does nothing else
                phase.losses, phase.number = [], ""
            self._tick_off(phase, phase.running)
            phase.share, phase.left = 0.0, ""
            phase.running, self.running = "", None

    def _tick_off(self, phase: Phase, title: str) -> None:
        phase.waiting.discard(title)
        if not phase.waiting and not phase.number:
            phase.number = self._number_of(phase.name)

    @property
    def elapsed(self) -> str:
        return format_duration(time.monotonic() - self._start)

    def table(self) -> "Group":
        """Return a row per phase and a footer, for a terminal."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(4):
            grid.add_column(no_wrap=True)
        for phase in self.phases:
            style = "bold" if phase.running else "dim" if phase.waiting else ""
            bar = ProgressBar(total=1.0, completed=phase.done, width=20)
            told = f"{phase.number}  {sparkline(phase.losses)}"
            grid.add_row(phase.name, bar, phase.duration, told.strip(), style=style)
        return Group(grid, Text(f"{self.elapsed}, {self.note}; all lines are in {LOG}", style="dim"))

    def print_changes(self) -> None:
        """Print a line for each phase that has started or ended, and one every 4 s, where there is no terminal."""
        lines = []
        for phase in self.phases:
            state = "done" if not phase.waiting else "running" if phase.running else ""
            if state not in ("", phase.printed):
                phase.printed = state
                lines.append(str(phase))
        if not lines and time.monotonic() - self._printed >= _HEARTBEAT_S:
            lines = [str(self.running) if self.running else f"{self.note}: {self.elapsed}"]
        for line in lines:
            self._printed = time.monotonic()
            print(line, flush=True)


def sparkline(values: Sequence[float]) -> str:
    """Return the values as a curve of at most 16 block characters, each the mean of an equal share of them."""
    n = min(16, len(values))
    parts = [values[i * len(values) // n : (i + 1) * len(values) // n] for i in range(n)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means, default=0.0), max(means, default=0.0)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (mean - low) / (high - low))] if high > low else "▄" for mean in means)


def number_of(phase: str, params: Params) -> str:
    """Return the number that matters of a finished phase, from the files that it wrote; "" if they have none."""
    number = ""
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        match phase:
            case "read":
                rows = (read_meta(layout.RAW / name / MANIFEST)["rows"] for name in params.sources)
                number = f"{sum(rows):,} documents"
            case "split":
                number = f"{sum(of['near'] for of in read_metrics(layout.DATA).values()):,} near duplicates"
            case "tokenize":
                sources = read_meta(layout.MIX)["sources"].values()
                number = f"{sum(of['train']['tokens'] for of in sources):,} tokens"
            case "train" | "fine-tune":
                file = layout.TRAINED if phase == "train" else layout.METRICS / "sft.json"
                number = f"loss {read_metrics(file)['best_val_loss']:.2f}"
            case "check":  # of the validation set with the most tokens
                scores = read_result(layout.SCORES)[layout.PRETRAINED.name].values()
                number = f"{max(scores, key=lambda score: score['tokens'])['bits_per_byte']:.2f} bits per byte"
            case "report":
                number = "report.html"
    return number


def params_and_problems() -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """Return params.yaml as a plain mapping, and the errors in it."""
    try:
        return read_params()[1], ()
    except ParamsError as error:
        return error.raw, error.problems


def print_problems() -> bool:
    """Print the errors in params.yaml and in what it refers to; return whether there are any."""
    params, problems = params_and_problems()
    around = problems_around(params, wrong=[problem.path for problem in problems])
    found = [*(problem.sentence for problem in problems), *around]
    for sentence in found:
        typer.echo(f"ERROR: {visible(sentence)}", err=True)
    return bool(found)


def run(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="passed on to `dvc repro`: stages, and options such as -f", metavar="...")
    ] = None,
) -> None:
    """Run what has changed since the last time, from reading the text to the report, and show how far it is."""
    if not layout.DAG.is_file():
        raise ValueError("there is no dvc.yaml here: run this in the project's folder")
    refuse_other_version()
    for sentence in mend(Path()):
        typer.echo(sentence)
    if print_problems():
        raise typer.Exit(1)
    from niels_gpt.cli.report import REPORT_FILE, TITLES, write_report

    refuse_foreign(REPORT_FILE, *TITLES)
    params, raw = read_params()
    board = Board(stage_titles(raw), partial(number_of, params=params))
    status, stopped = _watched(arguments or [], board)
    if stopped:
        typer.echo(f"stopped; `niels-gpt run` continues from there (all lines are in {LOG})", err=True)
        raise typer.Exit(130)
    if status:
        raise ValueError(f"{visible(board.error or board.last)} (all lines are in {LOG})")
    if any(phase.waiting for phase in board.phases):  # only some stages were asked for
        typer.echo(f"done; `niels-gpt run` runs the other stages (all lines are in {LOG})")
        return
    write_report(REPORT_FILE)
    for line in closing_lines(params):
        typer.echo(line)


def _watched(arguments: Sequence[str], board: Board) -> tuple[int, bool]:
    """Run `dvc repro` to its end, shown on the board; return its exit status, and whether it was stopped."""
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("ab") as log, LOG.open("rb") as written:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # DVC inherits it, and holds it if this process is killed
        except BlockingIOError as error:
            raise ValueError(f"`niels-gpt run` is running here already; {LOG} has what it prints") from error
        log.truncate(0)
        # Commands in dvc.yaml call `python`, which must be this one even if .venv is not activated.
        own, path = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
        path = path if own in path.split(os.pathsep) else os.pathsep.join((own, path))
        found = shutil.which("dvc", path=path)
        # A dvc that comes first on PATH is used, as in a shell; this environment's own records stages faster.
        theirs = found is not None and Path(found).parent != Path(own)
        dvc = subprocess.Popen(
            [*([found, "repro"] if theirs else [sys.executable, "-m", "niels_gpt.pipeline.repro"]), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"},
            process_group=0,  # signals of the terminal reach it from here, once
        )
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # not under nohup
                signal.signal(number, signal.default_int_handler)

        from rich.live import Live

        live = Live(get_renderable=board.table, auto_refresh=False) if sys.stdout.isatty() else None
        try:
            with live or nullcontext():
                stopped = _follow(dvc, written, board, live.refresh if live else board.print_changes)
        except BaseException:  # such as a closed pipe
            _interrupt(dvc)
            dvc.wait()
            raise
        return dvc.returncode, stopped


def _follow(dvc: subprocess.Popen[bytes], written: IO[bytes], board: Board, show: Callable[[], None]) -> bool:
    """Read what DVC writes until it ends; on Ctrl-C interrupt it, and return True."""
    rest, stopped, ended = b"", False, False
    while not ended:
        try:
            ended = dvc.poll() is not None  # before the last look
            *lines, rest = (rest + written.read()).split(b"\n")
            for line in lines:
                board.read(line.decode("utf-8", errors="replace"))
            if ended and not dvc.returncode:
                board.end_stage()
            if ended:
                board.note = "stopped" if stopped else "failed" if dvc.returncode else "done"
            show()
            time.sleep(0 if ended else _POLL_S)
        except KeyboardInterrupt:
            stopped, board.note = True, "stopping, training saves its state"
            _interrupt(dvc)
    return stopped


def _interrupt(dvc: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(dvc.pid, signal.SIGINT)


def closing_lines(params: Params) -> Iterator[str]:
    """Yield what the model can do in two sentences, three samples, and what to type next."""
    from niels_gpt.cli.export import open_model
    from niels_gpt.inference.sampling import Sampling

    name, folder = list(final_models().items())[-1]
    card = read_metrics(layout.SCORES, required=[layout.CARD])[layout.CARD][name]
    temperature, columns = best_temperature(card), shutil.get_terminal_size().columns
    yield ""
    for sentence in (ability(card), verdict(read_result(layout.LEAK)["sources"], name)):
        yield textwrap.fill(sentence, columns)
    yield f"\nThree samples at temperature {temperature}:"
    talker = open_model(str(folder))
    how: Any = {"sampling": Sampling(temperature), "max_new_tokens": 60, "seed": 0}
    questions = params.eval.questions if folder == layout.TUNED else []
    samples = [
        *((f"> {question} ", talker.reply([{"role": "user", "content": question}], **how)) for question in questions),
        *((prompt, talker.continuation(prompt, **how)) for prompt in params.eval.prompts),
    ]
    for before, texts in samples[:3]:
        said = visible(" ".join((before + "".join(texts)).split()))
        yield f"  {said}" if len(said) + 2 <= columns else f"  {said[: columns - 5]}..."
    yield "\nchat     niels-gpt chat, or niels-gpt serve for a page in the browser"
    yield "results  niels-gpt report --text, or open report.html in a browser"
    yield "keep     make baseline commits this run, to compare experiments with"
