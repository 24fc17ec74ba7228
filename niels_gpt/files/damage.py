"""Files that were written here once and are now damaged, or gone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class Damaged(ValueError):
    """What is wrong with a file or folder, with its `paths` for whoever knows how they were made.

    `path` begins the sentence; where there are `others`, `what` names them.
    """

    def __init__(self, path: str | Path, what: str, *, others: Iterable[str | Path] = ()) -> None:
        super().__init__(f"{path} {what}")
        self.paths = tuple(map(str, (path, *others)))
