"""Check, before the first step, that all hosts of a run have the same parameters, code and data.

A batch is put together from the rows of all hosts: nobody would see that some of them came from other data.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from niels_gpt.files.descriptions import read_meta
from niels_gpt.files.ranks import Ranks
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, digest

# Runtime settings that decide when ranks wait for each other: ranks that differ in them would deadlock.
_IN_STEP = ("micro_batch_tokens", "log_every", "checkpoint_every")
_SHOWN = 40  # characters; longer values, and hashes of files, differ by name alone


def check_agreement(stage: Stage, ranks: Ranks, *, device: str) -> None:
    """Raise on every rank if a host has other inputs than host 0; only the first rank of each host prints why."""
    if ranks.size == 1:
        return
    facts = ranks.exchange(_facts(stage, device) if ranks.local_rank == 0 else None)
    if sentence := disagreement([of_host for of_host in facts if of_host is not None]):
        if ranks.local_rank:
            sys.exit(1)
        raise ValueError(sentence)


def disagreement(facts: Sequence[Mapping[str, str]]) -> str:
    """Name what each host has otherwise than host 0, given the facts of all hosts in order; empty if nothing."""
    differing = {host: _differences(facts[0], other) for host, other in enumerate(facts)}
    hosts = "; ".join(f"host {host} has other {', '.join(names)}" for host, names in differing.items() if names)
    return hosts and (
        f"{hosts}: give every host the same commit, params.yaml, torch and data (`dvc pull`, or one disk for all), "
        "then run again on all hosts"
    )


def _facts(stage: Stage, device: str) -> dict[str, str]:
    """Return values as JSON, and hashes of the stage's inputs: of its code, one per module."""
    values = {f"runtime.{name}": getattr(stage.params.runtime, name) for name in _IN_STEP}
    # Another version of torch rounds differently, and may use another protocol. The suffix after + is its build.
    values |= {"torch": torch.__version__.partition("+")[0], "device": device.partition(":")[0]}
    facts = {key: json.dumps(value) for key, value in (values | _leaves(stage.inputs.params)).items()}
    for dep in map(Path, stage.inputs.deps):
        # All bytes are hashed, since another host's copy has another mtime.
        facts |= read_meta(dep) if dep.is_relative_to(layout.CODE) else {str(dep): digest(dep, whole=True)}
    return facts


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves


def _differences(first: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    pairs = {key: (first.get(key, "nothing"), other.get(key, "nothing")) for key in {**first, **other}}
    return [
        f"{key} ({there} instead of {here})" if max(len(here), len(there)) <= _SHOWN else key
        for key, (here, there) in pairs.items()
        if here != there
    ]
