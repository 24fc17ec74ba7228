"""Tests of the architecture: what each package may import, and that the layout and the page about it are true."""

import ast
import re
import tokenize
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from niels_gpt.pipeline import layout
from niels_gpt.pipeline.code import imported_files
from niels_gpt.pipeline.yaml_files import parse_yaml
from scripts.architecture import PAGE, draw, misplaced, with_drawing
from tests.conftest import ROOT

FILES = sorted(path for top in ("niels_gpt", "stages") for path in (ROOT / top).rglob("*.py"))
TOP = {"stages", "pipeline", "cli"}
LIBRARY = [path for path in FILES if not TOP & set(path.relative_to(ROOT).parts[:2])]
PRESCRIBED = "config rng device chat_format chat_template batching streams lr_schedule checkpoint generate"
DAG_PATHS = {path for path in vars(layout).values() if isinstance(path, Path)}
TOPS = {path.parts[0] for path in DAG_PATHS if not path.suffix or path.parts[1:]} - {layout.PRESETS.name}
FOREIGN = re.compile(rf"(?<!\.)\b(?:dvc|DVC)\b|params\.yaml|(?<![\w/])(?:{'|'.join(TOPS)})/")
_FOR_TYPES = "if TYPE_CHECKING:"
WINGS = "duplicates leak splice talk trace"
ROOMS = f"pipeline cli files jobs data tokenizer cache model base inference train eval report {WINGS}"


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_top_holds_its_folders_and_the_prescribed_names() -> None:
    entries = {path.name for path in (ROOT / "niels_gpt").iterdir() if path.name != "__pycache__"}
    assert entries == {"__init__.py", *ROOMS.split(), *(f"{module}.py" for module in PRESCRIBED.split())}
    assert len(entries) <= 29


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_file_has_more_than_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", LIBRARY, ids=name)
def test_the_library_knows_neither_dvc_nor_the_pipeline_nor_its_paths(path: Path) -> None:
    """A library module neither imports them nor names them in a string or a comment."""
    rooms = {name(file).split("/")[1] for file in imported_files(path, ROOT)}
    assert not TOP & rooms
    assert not [file for file in imported_files(path, ROOT) if name(file).startswith("stages/")]
    with path.open("rb") as f:
        texts = [t.string for t in tokenize.tokenize(f.readline) if t.type in (tokenize.STRING, tokenize.COMMENT)]
    assert [text for text in texts if FOREIGN.search(text)] == []


def generators_made(source: str) -> list[str]:
    """Return what the source imports, calls or names to make or seed a random number generator."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in ("random", "numpy.random")]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [
                name for name in names if re.match(r"random\.|numpy\.random|torch\.(Generator|manual_seed)$", name)
            ]
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"(np|numpy)\.random", ast.unparse(node)):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and re.search(r"\b(Generator|manual_seed(_all)?)$", ast.unparse(node.func)):
            found.append(ast.unparse(node.func))
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "from random import Random",
        "import numpy.random as r",
        "from numpy import random",
        "from numpy.random import default_rng",
        "x = np.random.default_rng(1)",
        "x = numpy.random.rand(3)",
        "g = torch.Generator().manual_seed(1)",
        "torch.manual_seed(1)",
        "torch.cuda.manual_seed_all(1)",
        "from torch import Generator",
    ],
)
def test_a_generator_is_seen_however_it_is_made(source: str) -> None:
    assert generators_made(source)


@pytest.mark.slow
def test_generators_are_made_in_one_module_and_for_the_trees_of_oasst1() -> None:
    found = {name(path) for path in FILES if generators_made(path.read_text())}
    assert found == {"niels_gpt/rng.py", "niels_gpt/data/oasst1.py"}


def test_the_layout_is_that_of_dvc_yaml() -> None:
    outs: set[str] = set()
    for stage in parse_yaml((ROOT / "dvc.yaml").read_text(), name="dvc.yaml")["stages"].values():
        declared = stage.get("do", stage)
        for kind in ("outs", "metrics", "plots"):
            outs |= {out if isinstance(out, str) else next(iter(out)) for out in declared.get(kind, [])}
    folders = {out.split("/${")[0] for out in outs if not out.startswith("metrics/")}
    unkept = (layout.MODELS, layout.FETCHED)  # the parent of outs, and local copies of a bucket's files
    ours = {str(path) for path in DAG_PATHS if path.parts[0] in ("cache", "models") and path not in unkept}
    assert folders == ours
    assert {str(path) for path in DAG_PATHS if path.parts[0] == "metrics" and path != layout.METRICS} <= {
        out.replace("${key}", "train") for out in outs
    }


@pytest.mark.slow
def test_no_module_imports_itself_through_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports for types count, too. Packages that contain a module are exempt: each import of the module runs them."""
    monkeypatch.setattr("niels_gpt.pipeline.code.read_text", lambda path: path.read_text().replace(_FOR_TYPES, "if 1:"))
    around = {path: {folder / "__init__.py" for folder in path.parents} for path in FILES}
    graph = {path: set(imported_files(path, ROOT)) - {path} - around[path] for path in FILES}
    done: set[Path] = set()

    def visit(path: Path, above: tuple[Path, ...]) -> None:
        assert path not in above, " -> ".join(map(name, (*above, path)))
        if path not in done:
            for other in graph[path]:
                visit(other, (*above, path))
            done.add(path)

    for path in FILES:
        visit(path, ())


@pytest.mark.parametrize("path", [path for path in LIBRARY if name(path).split("/")[1] not in WINGS.split()], ids=name)
def test_no_module_of_the_hall_imports_a_wing(path: Path) -> None:
    assert not {name(file).split("/")[1] for file in imported_files(path, ROOT)} & set(WINGS.split())


@pytest.mark.slow
def test_no_folder_imports_itself_through_others() -> None:
    """Folders import without cycles: stages and cli, then pipeline, wings, hall. A module beside them counts as one."""
    rooms: dict[str, set[str]] = {}
    for path in FILES:
        files = [path, *imported_files(path, ROOT)]
        above, *below = ("stages" if name(file).startswith("stages/") else name(file).split("/")[1] for file in files)
        rooms.setdefault(above, set()).update(set(below) - {above, "__init__.py"})
    TopologicalSorter(rooms).prepare()  # raises CycleError


@pytest.mark.slow
def test_the_picture_in_the_architecture_page_is_that_of_the_imports() -> None:
    page = (ROOT / PAGE).read_text()
    assert page == with_drawing(page, draw(ROOT)), "python -m scripts.architecture draws it anew"


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=name)
def test_tests_import_neither_bench_nor_other_tests(path: Path) -> None:
    """Code that several tests share is in a module beside them."""
    imported = re.findall(r"^ *(?:from|import) (bench\b|tests\.test_\w+)", path.read_text(), flags=re.MULTILINE)
    assert [module for module in imported if module != f"tests.{path.stem}"] == []


def test_every_module_belongs_to_one_feature_of_the_architecture_page() -> None:
    assert misplaced((ROOT / PAGE).read_text(encoding="utf-8"), ROOT) == []
