"""What an epoch of splice training consists of, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def describe_plan(summary: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """What an epoch consists of, a line a document and one for all."""
    lines = []
    for i, name in enumerate(names):
        length, quota = f"{name}: {summary['doc_lengths'][i]:,} tokens", summary["quotas"][i]
        if i not in summary["valid_docs"]:
            lines.append(f"{length}, too short for a span: not trained on")
            continue
        starts, unvisited = summary["starts_per_doc"][i], summary["unvisited_starts"][i]
        seen = "every one visited" if not unvisited else f"{unvisited:,} never visited"
        lines.append(f"{length}, K={summary['K_per_doc'][i]}, {starts:,} starts ({seen}), {quota:,} examples an epoch")
        if not quota:
            lines.append(f"{name} has no example in an epoch, and is not trained on: raise splice.epoch_length")
    lines.append(
        f"{summary['epoch_length']:,} examples an epoch in frames of {summary['S']}, "
        f"{summary['supervised_tokens_per_frame']:.1f} targets in each, jitter of {summary['effective_jitter']} places"
    )
    if summary["jitter_is_inert"]:
        lines.append(
            "offset_jitter does nothing here: spans fill the frame (K = S); lower content_length to give it room"
        )
    return lines
