"""What the pages in docs/ tell to run prints what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

_SHOWN = re.compile(r"```bash\n(python - .*?)```\n+```text\n(.*?)```", re.DOTALL)
EXAMPLES = [
    (page.name, *match) for page in sorted((ROOT / "docs").glob("*.md")) for match in _SHOWN.findall(page.read_text())
]


def test_there_are_examples() -> None:
    assert {name for name, _, _ in EXAMPLES} == {"splice.md"}
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize(("page", "command", "output"), EXAMPLES)
def test_an_example_prints_what_the_page_says(page: str, command: str, output: str) -> None:
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout == output, (page, done.stderr)


def test_the_sources_shown_are_sources(tmp_path: Path) -> None:
    """The YAML of your-own-text.md, put into the sample's parameters, is accepted."""
    import yaml

    from niels_gpt.pipeline.params import Params

    page = (ROOT / "docs/your-own-text.md").read_text()
    values = yaml.safe_load((ROOT / "presets/sample.yaml").read_text())
    for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        for section, entries in yaml.safe_load(block).items():
            values[section] |= entries
    assert {"diary", "mine", "talks", "answers"} <= set(values["sources"]) | set(values["chats"])
    Params.model_validate(values)
