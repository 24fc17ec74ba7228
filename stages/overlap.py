"""Stage `overlap`: measure how much held-out text occurs in training text, and where; stores no text."""

from __future__ import annotations

import tempfile
from pathlib import Path

from niels_gpt.data.corpus.parts import open_texts
from niels_gpt.data.corpus.split_files import read_split
from niels_gpt.duplicates.overlap import Quotes, find_quotes, measure_overlap
from niels_gpt.files.atomic import write_json
from niels_gpt.files.checks import read_meta
from niels_gpt.pipeline import layout
from niels_gpt.pipeline.stage import Stage, run_stage, write_metrics
from niels_gpt.pipeline.stores import open_engine, store_of


def main(stage: Stage) -> None:
    """Write overlap statistics by source, and the spans of quotes in held-out documents."""
    params = stage.params
    texts = {name: open_texts(layout.RAW / name, stored=store_of(params, name)) for name in params.sources}
    sources = {
        name: (texts[name], read_split(layout.SPLIT / source.use / name, texts[name]))
        for name, source in params.sources.items()
    }
    out, engine = stage.out(layout.DATA), open_engine(params.runtime)
    # Next to the output and not in /tmp, so that workers can read it as well.
    with tempfile.TemporaryDirectory(prefix=f"{out.name}.", dir=out.parent) as scratch:
        overlaps = measure_overlap(engine, sources, scratch=Path(scratch))
        quotes = find_quotes(engine, sources, scratch=Path(scratch))
    counts = read_meta(layout.PAIRS / "counts.json", required=list(sources))
    found = {
        name: {
            **counts[name],
            "held_out_runs": overlap.runs,
            "runs_in_train": _share(overlap.runs_found, overlap.runs),
            "characters_in_train": _share(overlap.characters_found, overlap.characters),
            **(_counts(quotes[name]) if quotes[name].spans else {}),
        }
        for name, overlap in overlaps.items()
    }
    write_metrics(out, found)
    write_json(stage.out(layout.QUOTES), {name: own.spans for name, own in quotes.items()})
    for name, row in found.items():
        stage.say(
            f"{name}: {row['near']:,} of {row['documents']:,} documents are near duplicates; of the held-out text, "
            f"{row['characters_in_train']:.2%} of the characters stand in training text -> {layout.DATA}"
        )


def _counts(quotes: Quotes) -> dict[str, int]:
    found = {"quotes": sum(map(len, quotes.spans.values())), "quoted_documents": len(quotes.spans)}
    return {**found, "quoted_characters": quotes.characters}


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


if __name__ == "__main__":
    run_stage("overlap", main)
