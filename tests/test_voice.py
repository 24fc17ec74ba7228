"""Tests of the project's writing: imperative docstrings, and the field's terms in everything a user reads."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted([*(ROOT / "niels_gpt").rglob("*.py"), *(ROOT / "stages").glob("*.py")])
BESIDE = sorted(path for folder in ("bench", "scripts", "tests") for path in (ROOT / folder).rglob("*.py"))
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "niels_gpt").rglob("*.js")])
SCRIPTS = sorted(
    path for end in ("js", "html") for path in (ROOT / "niels_gpt").rglob(f"*.{end}") if "vendor" not in path.parts
)
OPENINGS = re.compile(r"(?:Of|That|Those|So many|So much|What|How|Whether|Which|Why|Where)\b")
DIALECT = re.compile(
    r"nats a token|bits a byte|tokens a second|share of the machine|of the machine\)|likeliest|so be it|passages told"
    r"|what is held out|its surroundings",
    re.IGNORECASE,
)
# Further words that are banned from messages only: in code and docs they have other, correct uses.
IN_MESSAGES = re.compile(
    r"\b(?:draw(?:n|s|ing)?|told|said of|pieces|strangers?|likelier|by heart|word for word|faults?|mend|left out"
    r"|so many|held-out ones|at a loss|tak(?:e|es|en|ing) (?:it |them )?back|go(?:es|ing)? on|are others|come out"
    r"|are the least|is there already|(?:is|are) not there|(?:tokens|rows|nats|bits) an? \w+)\b",
    re.IGNORECASE,
)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def definitions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]


@pytest.mark.parametrize("path", [*FILES, *BESIDE], ids=name)
def test_docstrings_open_with_a_verb_or_a_noun(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = [ast.get_docstring(node) or "" for node in (tree, *definitions(path))]
    assert [text for text in texts if OPENINGS.match(text)] == []


@pytest.mark.parametrize("path", FILES, ids=name)
def test_public_functions_of_a_module_have_a_docstring(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    public = [f for f in functions if not f.name.startswith("_") and f.name != "main"]
    assert [f.name for f in public if not ast.get_docstring(f)] == []


@pytest.mark.parametrize("path", FILES, ids=name)
def test_strings_use_the_fields_words(path: Path) -> None:
    constants = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant)
    ]
    texts = [(node.lineno, node.value) for node in constants if isinstance(node.value, str)]
    assert [(line, text) for line, text in texts if DIALECT.search(text)] == []


def messages(path: Path) -> list[tuple[int, str]]:
    """Return (line, text) of every string of several words except docstrings; {} stands for a value of an f-string."""
    if path.suffix in (".js", ".html"):
        lines = path.read_text(encoding="utf-8").splitlines()
        texts = [(i, text) for i, line in enumerate(lines, 1) for text in re.findall(r'"[^"]*"|`[^`]*`|>[^<]+<', line)]
        return [(i, text) for i, text in texts if " " in text]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            found.append((node.lineno, "".join(map(str, parts))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            found.append((node.lineno, node.value))
    return [(line, text) for line, text in found if " " in text.strip()]


@pytest.mark.parametrize("path", [*FILES, *SCRIPTS], ids=name)
def test_messages_use_the_fields_words(path: Path) -> None:
    assert [(line, text) for line, text in messages(path) if IN_MESSAGES.search(text)] == []


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_pages_use_the_fields_words(path: Path) -> None:
    assert DIALECT.findall(path.read_text(encoding="utf-8")) == []
