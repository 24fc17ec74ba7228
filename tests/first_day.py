"""Run the commands of docs/first-day.md in order, in a fresh clone and at a tiny size, and compare with first_day.txt.

`python -m tests.first_day` runs them in the current folder and prints what a terminal shows.
"""

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conftest import ROOT, TINY, Repo

PAGE = (ROOT / "docs/first-day.md").read_text()
TRANSCRIPT = (ROOT / "tests/first_day.txt").read_text()
SECTIONS = {  # {command: lines it prints}
    section.partition("\n")[0].partition("  #")[0].strip(): section.partition("\n")[2].strip().splitlines()
    for section in re.split(r"^\$ ", TRANSCRIPT, flags=re.MULTILINE)[1:]
}


def commands(page: str) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL)
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]


DAY, LATER = map(commands, PAGE.split("## Later"))
INIT, RUN = "niels-gpt init ~/notes --hours 0.25", "niels-gpt run"
LOG = "cat logs/run.log"
# TINY without the values that decide which windows and chats fit.
SIZES = {name: value for name, value in TINY.items() if name not in ("tokenizer", "model.T")}
_BY_THE_MODEL = ("niels-gpt chat", "niels-gpt sample")  # print text that the model wrote
_VERDICT = re.compile(r"^Your model .*?\n\n", re.DOTALL | re.MULTILINE)  # depends on the size of the run
_PHASE = re.compile(r"(read|split|tokenize|train|fine-tune|check|report)  +[━╸╺ ]{20}")


def on_terminal(command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> tuple[int, list[str]]:
    """Run a command in a terminal of 80 columns; return its exit status and the lines left on the screen."""
    own, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    env = {**env, "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    whole = b""
    while True:
        try:
            part = os.read(own, 1 << 16)
        except OSError:  # on Linux, once the last writer has closed it
            break
        if not part:
            break
        whole += part
    os.close(own)
    # The output holds every frame in turn; the last one begins at the last line of the first phase, "read".
    text = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]|\r", "", whole.decode("utf-8", errors="replace"))
    frames = [found.start() for found in re.finditer(r"read  +[━╸╺ ]{20}", text)]
    lines = text[frames[-1] if frames else 0 :].splitlines()
    return process.wait(), [line.rstrip() for line in lines]


def walk(repo: Repo, home: Path) -> dict[str, list[str]]:
    """Run the page's commands with notes in `home`; return {command: its output, once per call}."""
    said: dict[str, list[str]] = {}
    for command in (*DAY[1:], *LATER):  # the first installs the environment; the tests' own is used
        for part in command.split(" && "):
            env = {"HOME": str(home), "MAKEFLAGS": "--no-print-directory"}  # as if not called by make
            if part == RUN:
                env["PATH"] = f"{repo.path / '.venv/bin'}{os.pathsep}{repo.environment()['PATH']}"  # its own `dvc`
                status, lines = on_terminal(shlex.split(part), cwd=repo.path, env=repo.environment() | env)
                assert status == 0, lines
                said[LOG] = [(repo.path / "logs/run.log").read_text()]
                said.setdefault(part, []).append("\n".join(lines))
                continue
            # Skip the speed measurement (ten seconds), and do not tune a base, which may be installed.
            more = ("--no-speed", "--from", "scratch") if part == INIT else ()
            done = repo.run(*shlex.split(part), *more, env=env)
            said.setdefault(part, []).append(done.stdout + done.stderr)
        if command == INIT:
            repo.set_all({**SIZES, "eval.max_tokens": 2048})
            repo.run("git", "commit", "-qm", "tiny", "params.yaml")
    return said


def not_in_the_transcript(said: dict[str, list[str]], home: Path) -> list[str]:
    """Return the printed lines that the transcript lacks; lines are compared by `shape`."""
    known = set(map(shape, TRANSCRIPT.splitlines()))
    lines = [
        line.replace(str(home), "/home/me")
        for command, printed in said.items()
        if not command.startswith(_BY_THE_MODEL)
        for line in _VERDICT.sub("", "\n".join(printed)).splitlines()
    ]
    return [line for line in lines if shape(line) not in known]


def shape(line: str) -> str:
    """Return the line without what differs between texts, machines and runs."""
    if "  sample: " in line or re.match(r"  \S.*", line):  # written by the model
        return "sample"
    if phase := _PHASE.match(line):
        return f"phase {phase[1]}"
    if re.search(r"\d+% of [\d,]+ \w+, .* left$", line):  # their number depends on the load
        return "progress"
    if line.startswith("leak: "):  # what can be extracted depends on the size of the run
        return "leak"
    for differing, instead in (
        (r"\b[0-9a-f]{7,40}\b", "#"),  # commits
        (r"\b[a-z]{4,6}-[a-z]{3,6}\b", "name-name"),  # experiments
        (r"\d+([.,]\d+)*(e[-+]?\d+)?", "0"),
        (r"\b0 (h|min|s|ms)\b( 0 (min|s)\b)*", "a while"),
        (r"\b0 ?(GB|MB|kB|bytes|B)\b", "0 bytes"),
        (r"0 \*", "0"),  # marks the best value of a row
    ):
        line = re.sub(differing, instead, line)
    return " ".join(line.split())


if __name__ == "__main__":
    for command in DAY[1:]:
        words = [os.path.expanduser(word) for word in shlex.split(command)]
        print("\n".join([f"$ {command}", *on_terminal(words, cwd=Path(), env=os.environ)[1], ""]))
