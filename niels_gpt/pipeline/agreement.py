"""Whether all hosts of a run have the same parameters, code and data: compared before the first step, since a batch is
put together from the rows of all, and nobody would see that some of them came from elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from niels_gpt.files.damage import Damaged
from niels_gpt.files.descriptions import read_meta
from niels_gpt.files.ranks import Ranks
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, digest

# Of what may differ between runs, that which decides when ranks wait for each other: else they wait for ever.
_IN_STEP = ("micro_batch_tokens", "log_every", "checkpoint_every")
_SHOWN = 40  # characters of a value that are worth showing


@dataclass(frozen=True)
class Facts:
    """What a rank works from: values to be shown, and hashes of files, which the first rank of each host computes."""

    host: int
    values: dict[str, str]
    files: dict[str, str] | None


def check_agreement(stage: Stage, ranks: Ranks, *, device: str) -> None:
    """Raise on every rank where one has other inputs than the first, and name host and input. The same sentence is said
    once a host."""
    if ranks.size == 1:
        return
    first_here = ranks.local_rank == 0
    first, *others = ranks.exchange(_facts(stage, ranks, device=device))
    if sentence := disagreement(first, others):
        if not first_here:
            sys.exit(1)
        raise ValueError(sentence)


def disagreement(first: Facts, others: Sequence[Facts]) -> str:
    """Who has what else than the first rank; nothing where all have the same."""
    told: dict[int, list[str]] = {}
    for other in others:
        differing = [*_other_values(first.values, other.values), *_other_files(first.files, other.files)]
        if differing:
            told[other.host] = list(dict.fromkeys([*told.get(other.host, []), *differing]))
    if not told:
        return ""
    hosts = "; ".join(f"host {host} has other {', '.join(names)}" for host, names in told.items())
    return (
        f"{hosts}: give every host the same commit, params.yaml, torch and data (`dvc pull`, or one disk for all), "
        "then run again on all hosts"
    )


def _facts(stage: Stage, ranks: Ranks, *, device: str) -> Facts:
    values = {f"runtime.{name}": getattr(stage.params.runtime, name) for name in _IN_STEP}
    # Another torch rounds otherwise, and may talk otherwise to its peers. What comes behind the + is how it was built.
    values |= {"torch": torch.__version__.partition("+")[0], "device": device.partition(":")[0]}
    values |= dict(_leaves(stage.inputs.params))
    hashes = dict(_hashes(list(stage.inputs.deps))) if ranks.local_rank == 0 else None
    shown = {key: json.dumps(value) for key, value in values.items()}
    return Facts(ranks.host, shown, hashes)


def _leaves(tree: Mapping[str, Any], *path: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, *path, str(key))
        else:
            yield ".".join((*path, str(key))), value


def _hashes(deps: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Of whole files, since another host's copy has another time; of a record of code, of every module in it."""
    for dep in deps:
        if Path(dep).is_relative_to(layout.CODE):
            try:
                yield from read_meta(dep).items()
                continue
            except (Damaged, OSError):  # then it is told by its own name
                pass
        yield dep, digest(Path(dep), whole=True)


def _other_values(first: Mapping[str, str], other: Mapping[str, str]) -> Iterator[str]:
    for key in sorted({*first, *other}):
        here, there = first.get(key, "nothing"), other.get(key, "nothing")
        if here != there:
            short = len(here) <= _SHOWN and len(there) <= _SHOWN
            yield f"{key} ({there} instead of {here})" if short else key


def _other_files(first: Mapping[str, str] | None, other: Mapping[str, str] | None) -> list[str]:
    if first is None or other is None:
        return []
    return sorted(key for key in {*first, *other} if first.get(key) != other.get(key))
