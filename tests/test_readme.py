"""A newcomer who reads only the README must succeed: every command in it is run or checked here."""

from __future__ import annotations

import re
import shlex
import signal
import urllib.request

import pytest

from stages.params import parse_params
from tests.conftest import ROOT, Repo
from tests.test_params import TEXT, leaves

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [line.split("#")[0].strip() for block in BLOCKS for line in block.splitlines() if line.strip()]


def test_the_two_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    asked = {command.split()[1] for command in COMMANDS if command.startswith("make ")}
    assert asked == {"run", "test"} <= targets


@pytest.mark.dag
def test_the_dvc_commands_work_as_written(built_repo: Repo) -> None:
    notes = built_repo.path / ".roam-data"
    notes.mkdir()
    for i in range(8):
        (notes / f"{i}.md").write_text(f"# Note {i}\n\nSomething of my own, told at some length, about {i} things.\n")
    commands = [command for command in COMMANDS if command.startswith("dvc ")]
    assert len(commands) == 4
    inline = re.findall(r"`((?:dvc|git|niels-gpt) [^`]+)`", README)
    commands += [c for c in inline if c.startswith(("dvc exp show", "dvc metrics diff", "git checkout"))]
    for command in commands:
        for part in command.split(" && "):
            built_repo.run(*shlex.split(part))
    talk_to_it(built_repo)


def talk_to_it(repo: Repo) -> None:
    """The block of niels-gpt commands, as it stands there."""
    commands = [shlex.split(command) for command in COMMANDS if command.startswith("niels-gpt ")]
    assert [command[1] for command in commands] == ["doctor", "sample", "chat", "serve", "export", "gc"]
    for command in commands:
        if command[1] == "serve":
            server = repo.start(*command, "--port", "0")
            assert server.stdout is not None
            try:
                address = server.stdout.readline().split()[0]
                assert "niels_gpt" in urllib.request.urlopen(address, timeout=20).read().decode()
            finally:
                server.send_signal(signal.SIGINT)
                server.wait(timeout=20)
        else:
            repo.run(*command)
    assert (repo.path / "my-model/model.safetensors").is_file()


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
