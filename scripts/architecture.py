"""Draw the folders of niels_gpt and their imports into docs/architecture.md, and count the lines of each feature.

Run: python -m scripts.architecture        (a test compares the drawing with the page, and finds files of no feature)
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from niels_gpt.files.atomic import atomic_path
from niels_gpt.pipeline.code import imported_files

PAGE = Path("docs/architecture.md")
_START, _END = "```mermaid\n", "```\n"
_BESIDE = "prescribed"  # modules beside the folders, which all folders may import


def room_of(file: Path) -> str:
    """Return a module's folder, such as `train`; modules beside the folders (prescribed names) count as one."""
    return file.parts[0] if file.parts[0] == "stages" else file.parts[1] if len(file.parts) > 2 else _BESIDE


def arrows(root: Path) -> set[tuple[str, str]]:
    """Return pairs (folder, a folder that it imports from)."""
    files = [path.relative_to(root) for top in ("niels_gpt", "stages") for path in (root / top).rglob("*.py")]
    pairs = {(room_of(file), room_of(other.relative_to(root))) for file in files for other in _imports(file, root)}
    return {(one, other) for one, other in pairs if one != other}


def _imports(file: Path, root: Path) -> list[Path]:
    """Return the imported modules, without the empty top package."""
    return [other for other in imported_files(root / file, root) if other != root / "niels_gpt/__init__.py"]


def draw(root: Path) -> str:
    """Return a mermaid diagram without arrows that two others imply, or to modules that all folders use."""
    found = arrows(root)

    @cache
    def reachable(room: str) -> set[str]:
        nexts = {other for one, other in found if one == room}
        return nexts.union(*(reachable(other) for other in nexts - {_BESIDE}))

    shown = [
        (one, other)
        for one, other in sorted(found)
        if _BESIDE not in (one, other)
        and not any(other in reachable(middle) for a, middle in found if a == one and middle not in (other, _BESIDE))
    ]
    return "flowchart TD\n" + "".join(f"    {one} --> {other}\n" for one, other in shown)


def with_drawing(page: str, drawing: str) -> str:
    head, _, rest = page.partition(_START)
    return head + _START + drawing + _END + rest.partition(_END)[2]


_FEATURE = re.compile(r"^(\| .+ \| )(.*`.*)( \| )[\d,]+ \|$", re.MULTILINE)  # a row of the table "Feature by feature"
_TOTAL = re.compile(r"(?<=^\| all \| \| )[\d,]+(?= \|$)", re.MULTILINE)


def files_of(cell: str, root: Path) -> Iterator[Path]:
    """Yield the Python files that a cell names, such as "`cache/` (windows, formats), `stages/tokenize.py`"."""
    for path, names in re.findall(r"`([^`]+)`(?: \(([^)]*)\))?", cell):
        place = root / path if path.startswith(("stages/", "scripts/")) else root / "niels_gpt" / path
        for named in [place / name for name in names.split(", ")] if names else [place]:
            file = named if named.suffix else named.with_suffix(".py")
            yield from [file] if file.is_file() else sorted(named.rglob("*.py"))


def misplaced(page: str, root: Path) -> list[Path]:
    """Return the Python files of the library that no feature of the page has, or several."""
    times = Counter(file for row in _FEATURE.finditer(page) for file in files_of(row[2], root))
    every = (path for top in ("niels_gpt", "stages") for path in (root / top).rglob("*.py") if path.stat().st_size)
    return [file for file in sorted(every) if times[file] != 1]


def with_lines(page: str, root: Path) -> str:
    """Return the page with the lines of each feature, and of all."""

    def lines(files: Iterator[Path]) -> int:
        return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)

    page = _FEATURE.sub(lambda row: f"{row[1]}{row[2]}{row[3]}{lines(files_of(row[2], root)):,} |", page)
    every = (path for top in ("niels_gpt", "stages") for path in (root / top).rglob("*.py"))
    return _TOTAL.sub(f"{lines(every):,}", page)


def main() -> None:
    page = with_lines(with_drawing(PAGE.read_text(encoding="utf-8"), draw(Path())), Path())
    with atomic_path(PAGE) as temporary:
        temporary.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
