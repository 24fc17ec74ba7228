"""Draws the rooms of niels_gpt and who imports whom into docs/architecture.md, from the imports themselves.

Run: python -m scripts.architecture        (a test compares the page with what this would draw)
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from niels_gpt.files.atomic import atomic_path
from niels_gpt.pipeline.code import imported_files

PAGE = Path("docs/architecture.md")
_START, _END = "```mermaid\n", "```\n"
_BESIDE = "prescribed"  # the modules beside the rooms, which all rooms may use


def room_of(file: Path) -> str:
    """`train` for a module in that room; the modules beside the rooms, whose names are prescribed, count as one."""
    return file.parts[0] if file.parts[0] == "stages" else file.parts[1] if len(file.parts) > 2 else _BESIDE


def arrows(root: Path) -> set[tuple[str, str]]:
    """(room, a room that it imports from)."""
    files = [path.relative_to(root) for top in ("niels_gpt", "stages") for path in (root / top).rglob("*.py")]
    pairs = {(room_of(file), room_of(other.relative_to(root))) for file in files for other in _imports(file, root)}
    return {(one, other) for one, other in pairs if one != other}


def _imports(file: Path, root: Path) -> list[Path]:
    """Without the package itself, which holds nothing."""
    return [other for other in imported_files(root / file, root) if other != root / "niels_gpt/__init__.py"]


def draw(root: Path) -> str:
    """A mermaid diagram. An arrow that is implied by two others is left out; so are those to what all rooms use."""
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


def main() -> None:
    page = with_drawing(PAGE.read_text(encoding="utf-8"), draw(Path()))
    with atomic_path(PAGE) as temporary:
        temporary.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
