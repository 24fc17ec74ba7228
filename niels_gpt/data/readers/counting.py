"""Characters counted in and out, so that no reader loses text in silence."""

from __future__ import annotations

from collections import Counter

_NAMED = 3  # words


def check_whole(expected: str, got: str) -> None:
    """Raise a ValueError if a character of `expected`, white space apart, occurs less often in `got`.

    Order does not count: a table may be laid out column by column, and a list gets bullets.
    """
    given = Counter(expected)
    missing = {character: count for character, count in (given - Counter(got)).items() if not character.isspace()}
    if not missing:
        return
    lost, total = sum(missing.values()), sum(map(len, expected.split()))
    there = set(got.split())
    words = [word for word in dict.fromkeys(expected.split()) if word not in there][:_NAMED]
    where = f", the first at {' '.join(words)[:60]!r}" if words else ""
    raise ValueError(f"{lost:,} of {total:,} characters were lost{where}")
