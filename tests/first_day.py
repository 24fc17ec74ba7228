"""The walk of docs/first-day.md: what its blocks say, in order, in a fresh clone; at a tiny size."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.conftest import ROOT, TINY, Repo

PAGE = (ROOT / "docs/first-day.md").read_text()
COMMANDS = [
    line.split("  #")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in block.splitlines()
]
INIT, BACK = "niels-gpt init ~/notes --hours 1", "git checkout params.yaml"
# Of TINY what does not decide which windows and chats fit.
SIZES = {name: value for name, value in TINY.items() if name not in ("tokenizer", "model.T")}


def walk(repo: Repo, home: Path) -> dict[str, list[str]]:
    """Run the page's commands, with notes in `home`; {command: what it printed, each time}."""
    said: dict[str, list[str]] = {}
    for command in COMMANDS:
        for part in command.split(" && "):
            more = ("--no-speed",) if part == INIT else ()  # ten seconds, and tests do not measure
            printed = repo.run(*shlex.split(part), *more, env={"HOME": str(home)}).stdout
            said.setdefault(part, []).append(printed)
        if command == INIT:
            repo.set_all({**SIZES, "eval.max_tokens": 2048})
            repo.run("git", "commit", "-qm", "tiny", "params.yaml")
    return said


def shape(line: str) -> str:
    """A line without what differs from text to text and from machine to machine."""
    return re.sub(r"\d[\d,.]*|\b[0-9a-f]{7,}\b", "0", line)
