"""A newcomer who reads only the README must succeed: every command in it is run or checked here."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from stages.params import parse_params
from tests.conftest import ROOT, TINY, Repo
from tests.test_params import TEXT, leaves

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [line.split("#")[0].strip() for block in BLOCKS for line in block.splitlines() if line.strip()]


def test_the_two_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    asked = {command.split()[1] for command in COMMANDS if command.startswith("make ")}
    assert asked == {"run", "test"} <= targets


@pytest.mark.dag
def test_a_script_of_the_readmes_commands_passes_in_a_fresh_clone(tmp_path: Path) -> None:
    """Every command in order, but `make test`, which is this; at a tiny size, and in the environment that is there."""
    repo = Repo(tmp_path / "clone")
    subprocess.run(["git", "clone", "-q", ROOT, repo.path], check=True)
    repo.set_all({**TINY, "model.T": 128})  # real chats do not fit less
    repo.commit("tiny")
    (repo.path / ".venv").symlink_to(sys.prefix)
    write_notes(repo.path / ".roam-data")
    ready = ("-o", ".venv/.installed")  # as make finds it the second time
    for command in COMMANDS:
        words = shlex.split(command)
        if command == "make test":
            continue
        if words[1] == "serve":
            serve_and_stop(repo, *words)
        else:
            repo.run(*words, *(ready if words[0] == "make" else ()))
        if command == "make run":
            repo.commit("run")  # at the real size it is what the clone came with
    assert (repo.path / "my-model/model.safetensors").is_file()
    inline = re.findall(r"`((?:dvc|git) [^`]+)`", README)
    chosen = [c for c in inline if c.startswith(("dvc exp show", "dvc metrics diff", "dvc plots show", "git checkout"))]
    assert len(chosen) == 4
    for command in chosen:
        for part in command.split(" && "):
            repo.run(*shlex.split(part))


def write_notes(folder: Path) -> None:
    folder.mkdir()
    for i in range(8):
        text = f"Something of my own, told at some length, about {i} things.\n"
        (folder / f"{i}.md").write_text(f"# Note {i}\n\n{text * 9}")


def serve_and_stop(repo: Repo, *command: str) -> None:
    server = repo.start(*command, "--port", "0")
    assert server.stdout is not None
    try:
        address = server.stdout.readline().split()[0]
        assert "niels_gpt" in urllib.request.urlopen(address, timeout=20).read().decode()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=20)


def test_the_table_names_every_parameter() -> None:
    table = README.split("## Parameters")[1]
    _, raw = parse_params(TEXT)
    for leaf in leaves(raw):
        last = leaf.split(".")[-1]
        if not leaf.startswith(("p_train", "p_val", "p_sft")):
            assert f"`{last}`" in table or f".{last}`" in table or f"`{last}:" in table, leaf


def test_the_tree_names_what_is_there_and_nothing_else() -> None:
    tree = README.split("## The tree")[1].split("```")[1]
    for module in (ROOT / "niels_gpt").iterdir():
        if module.name not in ("__init__.py", "__pycache__"):
            assert module.name in tree, module.name
    named = set(re.findall(r"\b[a-z_0-9]+\.py\b", tree))
    existing = {path.name for top in ("niels_gpt", "stages") for path in (ROOT / top).rglob("*.py")}
    assert named <= existing
