"""Time variants in turns: on a shared machine only ratios within one run are reliable."""

import json
import operator
import statistics
import time
from collections.abc import Callable


def seconds_in_turns(ways: dict[str, Callable[[], object]], *, rounds: int, calls: int) -> dict[str, list[float]]:
    """Return seconds per call of each variant, round by round; in every round each runs `calls` times."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            for _ in range(calls):
                way()
            times[name].append((time.perf_counter() - start) / calls)
    return times


def medians(measured: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in measured.items()}


def median_ratio(a: list[float], b: list[float]) -> float:
    """Return the median over rounds of a/b: both times of a round saw the same load, unlike medians of each."""
    return statistics.median(map(operator.truediv, a, b))


def print_result(title: str, rows: dict[str, float], *, unit: str, **extra: float) -> None:
    """Print a table for people, and a last line of JSON for programs."""
    print(title)
    for name, value in rows.items():
        print(f"  {name:<28}{value:>12.4g} {unit}")
    for name, value in extra.items():
        print(f"  {name:<28}{value:>12.4g}")
    print(json.dumps({"title": title, "unit": unit, **rows, **extra}))
