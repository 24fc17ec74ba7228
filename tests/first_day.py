"""Walk docs/first-day.md: run its commands in order in a fresh clone, at a tiny size. They print first_day.txt."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.conftest import ROOT, TINY, Repo

PAGE = (ROOT / "docs/first-day.md").read_text()
TRANSCRIPT = (ROOT / "tests/first_day.txt").read_text()  # of notes of 5.9 MB, on two ARM cores
COMMANDS = [
    line.split("  #")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in block.splitlines()
]
INIT = "niels-gpt init ~/notes --hours 0.25"
# Of TINY what does not decide which windows and chats fit.
SIZES = {name: value for name, value in TINY.items() if name not in ("tokenizer", "model.T")}
_BY_THE_MODEL = ("niels-gpt chat", "niels-gpt sample")  # what these print, it writes


def walk(repo: Repo, home: Path) -> dict[str, list[str]]:
    """Run the page's commands, with notes in `home`; {command: what it printed, each time}."""
    said: dict[str, list[str]] = {}
    for command in COMMANDS:
        for part in command.split(" && "):
            more = ("--no-speed",) if part == INIT else ()  # ten seconds, and tests do not measure
            done = repo.run(*shlex.split(part), *more, env={"HOME": str(home)})
            said.setdefault(part, []).append(done.stdout + done.stderr)
        if command == INIT:
            repo.set_all({**SIZES, "eval.max_tokens": 2048})
            repo.run("git", "commit", "-qm", "tiny", "params.yaml")
    return said


def not_in_the_transcript(said: dict[str, list[str]], home: Path) -> list[str]:
    """Return the printed lines that the transcript does not have, whatever the numbers in them."""
    known = set(map(shape, TRANSCRIPT.splitlines()))
    lines = [
        line.replace(str(home), "/home/me")
        for command, printed in said.items()
        if not command.startswith(_BY_THE_MODEL)
        for line in "\n".join(printed).splitlines()
    ]
    return [line for line in lines if shape(line) not in known]


def shape(line: str) -> str:
    """A line without what differs from text to text, from machine to machine and from run to run."""
    if "  sample: " in line:  # by the model
        return "sample"
    if line.startswith("leak: "):  # what can be extracted depends on the size of the run
        return "leak"
    for differing, instead in (
        (r"\b[0-9a-f]{7,40}\b", "#"),  # commits
        (r"\b[a-z]{4,6}-[a-z]{3,6}\b", "name-name"),  # experiments
        (r"\d+([.,]\d+)*(e[-+]?\d+)?", "0"),
        (r"\b0 (h|min|s|ms)\b( 0 (min|s)\b)*", "a while"),
        (r"\b0 ?(GB|MB|kB|bytes|B)\b", "0 bytes"),
        (r"0 \*", "0"),  # the best of a row
    ):
        line = re.sub(differing, instead, line)
    return " ".join(line.split())
