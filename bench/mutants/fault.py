"""A fault to plant: one line of the code, made wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`before` stands once in `file` and becomes `after`; one of `tests` (pytest's names, with spaces between) notices.

    `survives`: why no test can tell, where that is so.
    """

    name: str
    file: str
    before: str
    after: str
    tests: str
    survives: str | None = None
