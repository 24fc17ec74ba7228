"""Files that were written here once and are now damaged, or gone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any


class Damaged(ValueError):
    """What is wrong with a file or folder, with its `paths` for whoever knows how they were made.

    `path` begins the sentence; where there are `others`, `what` names them.
    """

    def __init__(self, path: str | Path, what: str, *, others: Iterable[str | Path] = ()) -> None:
        super().__init__(f"{path} {what}")
        self.paths = tuple(map(str, (path, *others)))
        self._made_of = (str(path), what, self.paths[1:])

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it can come from another process."""
        path, what, others = self._made_of
        return partial(Damaged, others=others), (path, what)
