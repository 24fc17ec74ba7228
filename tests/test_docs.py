"""Tests of README.md and the pages in docs/: examples print the output shown; commands, options and links exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from niels_gpt.cli.console import SHORT
from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_SHOWN = re.compile(r"```bash\n(python - .*?)```\n+```text\n(.*?)```", re.DOTALL)
EXAMPLES = [
    (page.name, *match) for page in sorted((ROOT / "docs").glob("*.md")) for match in _SHOWN.findall(page.read_text())
]


def test_there_are_examples() -> None:
    assert {name for name, _, _ in EXAMPLES} == {"splice.md"}
    assert len(EXAMPLES) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("page", "command", "output"), EXAMPLES)
def test_an_example_prints_what_the_page_says(page: str, command: str, output: str) -> None:
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout == output, (page, done.stderr)


def test_the_sources_shown_are_sources(tmp_path: Path) -> None:
    """The YAML of your-own-text.md is valid when merged into the sample's parameters."""
    import yaml

    from niels_gpt.pipeline.params import Params, complete

    page = (ROOT / "docs/your-own-text.md").read_text()
    values = yaml.safe_load((ROOT / "params.yaml").read_text())
    for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        for section, entries in yaml.safe_load(block).items():
            values[section] |= entries
    assert {"diary", "mine", "talks", "answers"} <= set(values["sources"])
    Params.model_validate(complete(values))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.is_file(), link
        headings = re.findall(r"^#+ (.*)", target.read_text(), flags=re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in headings}, (
            link
        )


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    from niels_gpt.cli.app import app

    text = page.read_text()
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL))
    named = re.findall(r"`(niels-gpt [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for line in [*re.findall(r"niels-gpt .*", blocks), *named]:
        known = typer.main.get_command(app)
        words = shlex.split(" ".join(line.split()), comments=True)[1:]
        words = [*SHORT.get(words[0], words[:1]), *words[1:]] if words else words
        while words and (inner := getattr(known, "commands", {})):
            assert words[0] in inner, line
            known = inner[words.pop(0)]
        options = {option for parameter in known.params for option in parameter.opts}
        assert {word.rstrip(";") for word in words if re.match("--?[a-z]", word)} <= options, line
