"""Tests of source kinds: each is one file with its settings, loader and possible splits, and its own fingerprint."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from niels_gpt.data.kinds import kind_files, source_kinds
from niels_gpt.pipeline import code
from tests.conftest import ROOT, TINY, run_python, with_values

TEXTS = {"fineweb_edu", "gutenberg", "primer", "rich_text", "roam", "text", "wikitext"}
CHATS = {"chat", "dialogues", "dolly", "oasst1"}
FILES = {name: f"niels_gpt/data/{path.name}" for name, path in kind_files(ROOT / "niels_gpt/data").items()}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of the code, without data, for a test to edit."""
    for name in ("niels_gpt", "stages"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_every_kind_is_found_by_what_it_calls_itself() -> None:
    assert {name for name, kind in source_kinds().items() if kind.holds_chats} == CHATS
    assert set(source_kinds()) == TEXTS | CHATS
    assert {name: f"niels_gpt/data/{name}.py" for name in sorted(TEXTS | CHATS)} == FILES


@pytest.mark.parametrize("name", FILES)
def test_every_kind_has_a_place_in_the_page(name: str) -> None:
    assert re.search(rf"\bkind: {name}\b|`{name}`", (ROOT / "docs/your-own-text.md").read_text())


@pytest.mark.slow
def test_a_change_in_one_loader_changes_that_kinds_fingerprint_alone(project: Path) -> None:
    before = code.describe_code(project)
    for name, file in FILES.items():
        assert [kind for kind in FILES if file in before[f"load/{kind}"]] == [name]
    name, file = "dolly", FILES["dolly"]
    text = (project / file).read_text()
    (project / file).write_text(text + "\nADDED = 1\n")
    after = code.describe_code(project)
    assert [key for key in after if after[key] != before[key]] == [f"load/{name}"]
    changed = {path for path, digest in after[f"load/{name}"].items() if before[f"load/{name}"].get(path) != digest}
    assert changed == {file}
    (project / file).write_text(text)
    for file in FILES.values():
        (project / file).write_text((project / file).read_text() + "\nADDED = 1\n")
    after = code.describe_code(project)
    assert [key for key in after if after[key] != before[key]] == [f"load/{name}" for name in FILES]


@pytest.mark.slow
def test_only_loaders_of_hub_datasets_depend_on_the_hub_module() -> None:
    for name in FILES:
        reads_hub = "niels_gpt/data/hub.py" in code.code_of("load", ROOT, kind=name)
        assert reads_hub == (name in {"dolly", "fineweb_edu", "gutenberg", "oasst1", "wikitext"}), name


POEMS = """
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from niels_gpt.data.types import Document

KIND = "poem"


@dataclass(frozen=True)
class Settings:
    splits: ClassVar[tuple[str, ...]] = ("document",)
    verses: Annotated[int, Ge(1), "verses read at most"]


def documents(settings, request):
    for i, verse in enumerate(open(request.path).read().split("\\n\\n")[: settings.verses]):
        yield Document(id=str(i), text=verse)
"""
LOAD = """
from pathlib import Path
from niels_gpt.data.corpus.parts import read_column
from niels_gpt.pipeline.params import read_params
from niels_gpt.pipeline.stage import Inputs, Stage
from stages import load
stage = Stage(name="load", key="roam", params=read_params()[0], inputs=Inputs({}, {}))
load.main(stage)
(out,) = stage.outs.values()
print(read_column(out / "part-00000.parquet", "text"), (out / "manifest.json").read_text())
"""


@pytest.mark.slow
def test_a_new_kind_is_one_file(project: Path) -> None:
    (project / "niels_gpt/data/poem.py").write_text(POEMS)
    (project / "poems.txt").write_text("one\n\ntwo\n\nthree")

    def load(verses: int) -> subprocess.CompletedProcess[str]:
        values = {"sources.roam.input": "poems.txt", "sources.roam.load": {"kind": "poem", "verses": verses}}
        text = (ROOT / "params.yaml").read_text()
        (project / "params.yaml").write_text(with_values(text, TINY | values))
        return run_python(LOAD, cwd=project, env={})

    done = load(2)
    assert "['one', 'two']" in done.stdout, done.stderr
    assert '"kind": "poem"' in done.stdout
    assert "sources.roam.load.verses is 0: input should be greater than or equal to 1" in load(0).stderr
    assert "load/poem" in code.describe_code(project)
